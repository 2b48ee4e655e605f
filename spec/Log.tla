-------------------------------- MODULE Log --------------------------------
(* The job's log: which checkpoint counts, and which driver holds the job. docs/decisions/0001 says it in words.          *)
(*                                                                                                                        *)
(* Drivers come one after the other or side by side: an old one may be frozen anywhere and wake up. Each record is created *)
(* only if its number is free. An answer may be lost: then the record is *in doubt*, it may be there, or come later, or    *)
(* never. A checkpoint is the rows between its base (what the driver restored, or its last checkpoint) and itself.         *)
(* Old records are deleted: `log` is all that ever counted, `gone` the numbers that are free again, `strays` the records   *)
(* that were created there, which say nothing.                                                                            *)
(* `Fault` plants a mistake; "none" is the protocol as it is.                                                             *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS NDrivers,        \* one after the first: each more is a crash, or a second driver started by mistake
          MaxCheckpoints,  \* of all drivers together
          MaxLost,         \* answers that are lost
          Short,           \* whether old records are deleted
          Fault

VARIABLES log,        \* the records that count or did, in order
          gone,       \* numbers of those that were deleted
          strays,     \* what was created at such a number
          driver,     \* what each driver believes
          flying,     \* creates that were given up by their driver, and may still arrive
          committed,  \* checkpoints whose output is visible
          made, lost

vars == <<log, gone, strays, driver, flying, committed, made, lost>>

Drivers == 1..NDrivers
Asleep == [state |-> "not begun", seen |-> 0, gen |-> 0, base |-> 0, next |-> 1, record |-> <<>>]

Generation(d, g, latest, next) == [kind |-> "generation", gen |-> g, by |-> d, latest |-> latest, next |-> next, base |-> latest]
Checkpoint(d, g, c, base) == [kind |-> "checkpoint", gen |-> g, by |-> d, latest |-> c, next |-> c + 1, base |-> base]

Newest == IF log = <<>> THEN [gen |-> 0, latest |-> 0, next |-> 1] ELSE log[Len(log)]
InLog == {log[i] : i \in DOMAIN log}

Init == /\ log = <<>> /\ gone = {} /\ strays = {} /\ flying = {} /\ committed = {} /\ made = 0 /\ lost = 0
        /\ driver = [d \in Drivers |-> Asleep]

(* The store: `create` at number n works if and only if nothing stands there: it is the next, or its record was deleted.   *)
(* The planted fault is a store, or a driver, that finds itself the next free number.                                      *)
IsNext(n) == Len(log) + 1 = n \/ Fault = "an old generation may still append"
Free(n) == IsNext(n) \/ n \in gone
Create(n, record) == IF IsNext(n) THEN log' = Append(log, record) /\ UNCHANGED <<gone, strays>>
                                 ELSE log' = log /\ gone' = gone \ {n} /\ strays' = strays \cup {[at |-> n, record |-> record]}
At(n) == {log[i] : i \in {n} \cap (DOMAIN log \ gone)} \cup {s.record : s \in {t \in strays : t.at = n}}

(* 1. A driver reads the newest record. 2. It creates the next generation right after. Taken: it begins again.             *)
Read(d) ==
    /\ driver[d].state \in {"not begun", "doubt"}
    /\ driver' = [driver EXCEPT ![d] = [Asleep EXCEPT !.state = "read", !.seen = Len(log), !.gen = Newest.gen + 1,
                                        !.base = Newest.latest, !.next = Newest.next]]
    /\ flying' = flying \cup (IF driver[d].state = "doubt" THEN {[at |-> driver[d].seen + 1, record |-> driver[d].record]} ELSE {})
    /\ UNCHANGED <<log, gone, strays, committed, made, lost>>

Take(d) ==
    LET me == driver[d] IN
    /\ me.state = "read"
    /\ IF IF Fault = "an old generation may still append" THEN Len(log) = me.seen ELSE Free(me.seen + 1)
       THEN /\ Create(me.seen + 1, Generation(d, me.gen, me.base, me.next))
            /\ driver' = [driver EXCEPT ![d].state = IF Fault = "nobody looks again" THEN "runs" ELSE "looks", ![d].seen = @ + 1]
       ELSE /\ UNCHANGED <<log, gone, strays>>
            /\ driver' = [driver EXCEPT ![d] = Asleep]
    /\ UNCHANGED <<flying, committed, made, lost>>

(* 3. Is it the newest, or is the next driver's right after it? Otherwise it was created where a record had been deleted.  *)
Look(d) ==
    LET me == driver[d] IN
    /\ me.state = "looks"
    /\ driver' = IF Len(log) = me.seen \/ \E r \in At(me.seen + 1) : r.gen = me.gen + 1
                 THEN [driver EXCEPT ![d].state = "runs"]
                 ELSE [driver EXCEPT ![d] = Asleep]
    /\ UNCHANGED <<log, gone, strays, flying, committed, made, lost>>

(* A driver that believes it holds the job deletes what is older than the last record it has seen, but for generations.    *)
Shorten(d) ==
    LET old == {n \in DOMAIN log : n < driver[d].seen /\ (log[n].kind = "checkpoint" \/ Fault = "generations are deleted too")} IN
    /\ Short /\ driver[d].state = "runs"
    /\ ~(old \subseteq gone)
    /\ gone' = gone \cup old
    /\ UNCHANGED <<log, strays, driver, flying, committed, made, lost>>

(* What the checkpoint that it builds on holds: a slot is ready when this is committed.                                    *)
Restored(d) == {r \in InLog : r.kind = "checkpoint" /\ r.latest = driver[d].base}

(* All slots have acknowledged: the record is made, and not written yet.                                                   *)
Acknowledged(d) ==
    LET me == driver[d] IN
    /\ me.state = "runs"
    /\ Restored(d) \subseteq committed \/ Fault = "restored committables are forgotten"
    /\ made < MaxCheckpoints
    /\ made' = made + 1
    /\ driver' = [driver EXCEPT ![d].state = "writes", ![d].record = Checkpoint(d, me.gen, me.next, me.base)]
    /\ UNCHANGED <<log, gone, strays, flying, committed, lost>>

Written(d) ==  \* what its driver believes once the record stands
    [driver EXCEPT ![d].state = "logged", ![d].seen = @ + 1, ![d].base = driver[d].record.latest, ![d].next = driver[d].record.next]

(* The create: it works; or the number is another's, and the driver ends; or it stands there already, by itself.           *)
Write(d) ==
    LET me == driver[d] IN
    /\ me.state \in {"writes", "doubt"}
    /\ IF Free(me.seen + 1) THEN Create(me.seen + 1, me.record) /\ driver' = Written(d)
       ELSE /\ UNCHANGED <<log, gone, strays>>
            /\ driver' = IF me.record \in At(me.seen + 1) THEN Written(d) ELSE [driver EXCEPT ![d].state = "superseded"]
    /\ UNCHANGED <<flying, committed, made, lost>>

(* The answer is lost: with its effect, or without.                                                                        *)
LoseAnswer(d) ==
    LET me == driver[d] IN
    /\ me.state = "writes"
    /\ lost < MaxLost
    /\ lost' = lost + 1
    /\ \/ UNCHANGED <<log, gone, strays>>
       \/ Free(me.seen + 1) /\ Create(me.seen + 1, me.record)
    /\ driver' = [driver EXCEPT ![d].state = IF Fault = "a record in doubt is taken for absent" THEN "runs" ELSE "doubt",
                                ![d].next = IF Fault = "a record in doubt is taken for absent" THEN @ + 1 ELSE @,
                                ![d].seen = IF Fault = "a record in doubt is taken for absent" THEN Len(log') ELSE @]
    /\ UNCHANGED <<flying, committed, made>>

(* A create that was given up arrives late.                                                                                *)
Arrive(f) ==
    /\ f \in flying
    /\ flying' = flying \ {f}
    /\ IF Free(f.at) THEN Create(f.at, f.record) ELSE UNCHANGED <<log, gone, strays>>
    /\ UNCHANGED <<driver, committed, made, lost>>

(* Slots are told, and commit. The driver may sleep between the record and this.                                           *)
Commit(d) ==
    /\ \/ driver[d].state = "logged"
       \/ driver[d].state = "writes" /\ Fault = "committed before the log record"
       \/ driver[d].state = "doubt" /\ Fault = "a record in doubt is committed"
    /\ committed' = committed \cup {driver[d].record}
    /\ driver' = [driver EXCEPT ![d].state = IF @ = "logged" THEN "runs" ELSE @]
    /\ UNCHANGED <<log, gone, strays, flying, made, lost>>

(* A driver that takes over commits what the restored checkpoint holds: it may have been logged and not committed.         *)
CommitRestored(d) ==
    /\ driver[d].state = "runs"
    /\ Fault # "restored committables are forgotten"
    /\ ~(Restored(d) \subseteq committed)
    /\ committed' = committed \cup Restored(d)
    /\ UNCHANGED <<log, gone, strays, driver, flying, made, lost>>

Die(d) == /\ driver[d].state \notin {"not begun", "superseded", "dead"}
          /\ \E other \in Drivers : driver[other].state = "not begun"
          /\ driver' = [driver EXCEPT ![d].state = "dead"]
          /\ flying' = flying \cup (IF driver[d].state \in {"writes", "doubt"}
                                    THEN {[at |-> driver[d].seen + 1, record |-> driver[d].record]} ELSE {})
          /\ UNCHANGED <<log, gone, strays, committed, made, lost>>

(* Nothing is left to do: every driver rests, and what is in the log is visible.                                           *)
End == /\ \A d \in Drivers : driver[d].state \in {"runs", "superseded", "dead"}
       /\ {r \in InLog : r.kind = "checkpoint"} \subseteq committed
       /\ UNCHANGED vars

Next == \/ \E d \in Drivers : Read(d) \/ Take(d) \/ Look(d) \/ Shorten(d) \/ Acknowledged(d) \/ Write(d) \/ LoseAnswer(d) \/ Commit(d)
                              \/ CommitRestored(d) \/ Die(d)
        \/ \E f \in flying : Arrive(f)
        \/ End

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* After a record of a generation there is never one of an older one, and a generation has one driver.                    *)
OldGenerationsAreSilent == \A i, j \in DOMAIN log : i < j => log[i].gen <= log[j].gen
OneDriverEach == \A r, q \in InLog : r.gen = q.gen => r.by = q.by

(* Checkpoint ids only grow.                                                                                               *)
IdsGrow == \A i, j \in DOMAIN log : i < j /\ log[j].kind = "checkpoint" => log[i].latest < log[j].latest

(* Each record builds on the one before it: no rows between two checkpoints are missing, none are in both.                 *)
OneLine == \A i \in DOMAIN log : log[i].base = (IF i = 1 THEN 0 ELSE log[i - 1].latest)

CommitsAfterTheLog == committed \subseteq InLog
=============================================================================
