----------------------------- MODULE Snapshots -----------------------------
(* The snapshot protocol of one job: sources, slots, barriers, acknowledgements, the log record, two-phase commit,       *)
(* crashes, restores at another width. docs/decisions/0005 says in words what this module says in formulas.              *)
(*                                                                                                                        *)
(*   source 1 --+--> slot 1 --> sink       Each source has a channel to each slot. A channel is a sequence of frames:    *)
(*              X                          records and barriers. A record goes to the slot that owns its key. Slots      *)
(*   source 2 --+--> slot 2 --> sink       count records (their state) and write them to the sink's open transaction.    *)
(*                                                                                                                        *)
(* The log is one variable here, `latest`, written in one step; how drivers fight over it is in Log.tla.                 *)
(* `Fault` plants a mistake; "none" is the protocol as it is.                                                            *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    NSources, NRecords,  \* records of each source
    Widths,              \* the numbers of slots that the job may run with
    Modes,               \* of checkpoints: "aligned", "unaligned", "stop" (a savepoint with which the job halts, or a rescale),
                         \* "savepoint" (a plain one: it is not in the log, and commits nothing)
    MaxCheckpoints,      \* that are triggered before the input has ended; final ones come on top
    MaxGivenUp, MaxCrashes,
    Fault

VARIABLES
    width,      \* slots of this attempt
    attempt,    \* its number; part of the name of all that it stages
    position,   \* of each source: the next record to read
    sent,       \* of each source: how many of `ordered` it has sent barriers for
    channel,    \* [source][slot]: frames under way
    slot,       \* what each slot holds in memory
    ordered,    \* the checkpoints that were triggered in this attempt, in order
    pending,    \* the checkpoint that the driver collects answers for
    aborts,     \* of each slot: checkpoints that were given up, and that it has not heard of
    latest,     \* the snapshot that the newest log record names
    savepoint,  \* the newest plain savepoint
    staged, committed,  \* transactions outside: prepared ones, and visible ones
    triggered, givenUp, crashes

vars == <<width, attempt, position, sent, channel, slot, ordered, pending, aborts, latest, savepoint, staged, committed,
          triggered, givenUp, crashes>>

Sources == 1..NSources
MaxWidth == CHOOSE w \in Widths : \A v \in Widths : v <= w
AllSlots == 1..MaxWidth
Slots == 1..width
Records == Sources \X (1..NRecords)
Owner(r, w) == ((r[1] + r[2]) % w) + 1  \* whose key it is
Max(a, b) == IF a > b THEN a ELSE b

Frame(r) == [kind |-> "record", record |-> r]
Barrier(c, mode) == [kind |-> "barrier", id |-> c, mode |-> mode]
IsRecord(f) == f.kind = "record"
IsBarrierOf(f, c) == f.kind = "barrier" /\ f.id = c
RecordsOf(q) == {q[i].record : i \in {j \in DOMAIN q : IsRecord(q[j])}}

Nothing == [id |-> 0]
NoQueues == [s \in Sources |-> <<>>]

EmptySlot == [counted |-> {},      \* the keyed state: which records it has counted
              open |-> {},         \* rows of the sink that belong to no checkpoint yet
              prepared |-> {},     \* transactions that are not known to be committed
              aligning |-> 0,      \* the checkpoint whose barriers it waits for
              held |-> {},         \* channels whose barrier has come
              queue |-> NoQueues,  \* frames held back, released or restored: they come before newer ones of their channel
              done |-> 0,          \* barriers up to this id have nothing more to say
              upload |-> Nothing]  \* a snapshot that is not acknowledged yet

NoSnapshot == [id |-> 0, counted |-> {}, prepared |-> {}, inflight |-> {},
               position |-> [s \in Sources |-> 1], stop |-> FALSE, attempt |-> 0]

-----------------------------------------------------------------------------
(* A start, from what the log names: the first one, after a crash, after a stop, at any width.                           *)

RestoredQueue(snapshot, s, k, w) ==
    LET mine == {r \in snapshot.inflight : r[1] = s /\ Owner(r, w) = k}
        RECURSIVE InOrder(_)
        InOrder(rest) == IF rest = {} THEN <<>>
                         ELSE LET first == CHOOSE r \in rest : \A q \in rest : r[2] <= q[2]
                              IN <<Frame(first)>> \o InOrder(rest \ {first})
    IN IF Fault = "in-flight records are not restored" THEN <<>>
       ELSE IF Fault = "in-flight records stay with their old slot" /\ w < MaxWidth
       THEN InOrder({r \in mine : Owner(r, MaxWidth) = k})
       ELSE InOrder(mine)

RestoredSlot(snapshot, k, w) ==
    [EmptySlot EXCEPT
        !.counted = {r \in snapshot.counted : Owner(r, w) = k},
        !.prepared = IF Fault = "restored committables are forgotten" THEN {}
                     ELSE {p \in snapshot.prepared : ((p.slot - 1) % w) + 1 = k},
        !.queue = [s \in Sources |-> RestoredQueue(snapshot, s, k, w)]]

Start(snapshot, w) ==
    /\ width' = w
    /\ position' = snapshot.position
    /\ sent' = [s \in Sources |-> 0]
    /\ channel' = [s \in Sources |-> [k \in AllSlots |-> <<>>]]
    /\ slot' = [k \in AllSlots |-> IF k <= w THEN RestoredSlot(snapshot, k, w) ELSE EmptySlot]
    /\ ordered' = <<>>
    /\ pending' = Nothing
    /\ aborts' = [k \in AllSlots |-> {}]
    \* What older attempts have staged, and the snapshot does not hold, is thrown away.
    /\ staged' = IF Fault = "clean-up takes what the checkpoint holds" THEN {} ELSE staged \cap snapshot.prepared

Init ==
    /\ width \in Widths
    /\ attempt = 1
    /\ position = NoSnapshot.position
    /\ sent = [s \in Sources |-> 0]
    /\ channel = [s \in Sources |-> [k \in AllSlots |-> <<>>]]
    /\ slot = [k \in AllSlots |-> EmptySlot]
    /\ ordered = <<>>
    /\ pending = Nothing
    /\ aborts = [k \in AllSlots |-> {}]
    /\ latest = NoSnapshot
    /\ savepoint = NoSnapshot
    /\ staged = {} /\ committed = {}
    /\ triggered = 0 /\ givenUp = 0 /\ crashes = 0

(* A slot or the driver dies: the attempt is over, and the next one begins with what the log names.                      *)
Crash ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ attempt' = attempt + 1
    /\ \E w \in Widths : Start(latest, w)
    /\ UNCHANGED <<latest, savepoint, committed, triggered, givenUp>>

-----------------------------------------------------------------------------
(* Sources                                                                                                                *)

LastSent(s) == IF sent[s] = 0 THEN [id |-> 0, mode |-> "none"] ELSE ordered[sent[s]]
Stopped == latest.stop /\ latest.attempt = attempt  \* the record of a stop is in the log
Halted(s) == Stopped \/ (LastSent(s).mode = "stop" /\ pending.id = LastSent(s).id)

(* A frame is appended; a slot that captures what comes before the barrier of this channel adds it to its snapshot.      *)
Arrive(sl, s, r) ==
    IF sl.upload.id # 0 /\ s \in sl.upload.capturing /\ Fault # "what arrives after the cut is not captured"
    THEN [sl EXCEPT !.upload.part.inflight = @ \cup {r}]
    ELSE sl

Emit(s) ==
    LET r == <<s, position[s]>>
        k == Owner(r, width)
    IN
    /\ position[s] <= NRecords
    /\ ~Halted(s)
    /\ position' = [position EXCEPT ![s] = @ + 1]
    /\ channel' = [channel EXCEPT ![s][k] = Append(@, Frame(r))]
    /\ slot' = [slot EXCEPT ![k] = Arrive(@, s, r)]
    /\ UNCHANGED <<width, attempt, sent, ordered, pending, aborts, latest, savepoint, staged, committed, triggered, givenUp, crashes>>

(* The source sends the barrier to all, and its position is in the snapshot. It does so also where the checkpoint was    *)
(* given up meanwhile: the letter that says so comes after the trigger.                                                  *)
SendBarrier(s) ==
    LET order == ordered[sent[s] + 1]
        told == IF Fault = "a position includes a record after the barrier" THEN (IF position[s] <= NRecords THEN position[s] + 1 ELSE position[s])
                ELSE position[s]
    IN
    /\ sent[s] < Len(ordered)
    /\ sent' = [sent EXCEPT ![s] = @ + 1]
    /\ channel' = [channel EXCEPT ![s] = [k \in AllSlots |->
                      IF k <= width THEN Append(@[k], Barrier(order.id, order.mode)) ELSE <<>>]]
    /\ slot' = [k \in AllSlots |-> IF slot[k].upload.id = order.id
                                   THEN [slot[k] EXCEPT !.upload.capturing = @ \ {s}] ELSE slot[k]]
    /\ pending' = IF pending.id = order.id THEN [pending EXCEPT !.position[s] = told] ELSE pending
    /\ UNCHANGED <<width, attempt, position, ordered, aborts, latest, savepoint, staged, committed, triggered, givenUp, crashes>>

-----------------------------------------------------------------------------
(* Slots                                                                                                                  *)

Name(c, k, rows) == [id |-> c, attempt |-> attempt, slot |-> k, rows |-> rows]

(* What was written since the last snapshot becomes a transaction of this one.                                           *)
Prepared(sl, c, k) == IF sl.open = {} THEN sl.prepared ELSE sl.prepared \cup {Name(c, k, sl.open)}

(* The cut: state, prepared output, and (unaligned) what is under way. It becomes an upload, then an acknowledgement.     *)
Cut(sl, c, k, inflight, capturing) ==
    [sl EXCEPT !.prepared = Prepared(sl, c, k), !.open = {}, !.aligning = 0, !.held = {}, !.done = c,
               !.upload = [id |-> c, capturing |-> capturing,
                           part |-> [counted |-> sl.counted, prepared |-> Prepared(sl, c, k), inflight |-> inflight]]]

Stage(sl, c, k) == IF sl.open = {} THEN {} ELSE {Name(c, k, sl.open)}

(* A barrier of an aligned checkpoint comes to its turn. A newer one ends the alignment of an older one.                  *)
OnBarrier(sl, s, c, k) ==
    IF c <= sl.done THEN sl
    ELSE LET held == (IF sl.aligning = c THEN sl.held ELSE {}) \cup {s} IN
         IF held = Sources THEN Cut([sl EXCEPT !.held = {}], c, k, {}, {})
         ELSE [sl EXCEPT !.aligning = c, !.held = held]

(* The next frame of channel s: one that was released or restored, else one from the network. Where the channel is held   *)
(* only the network is read, and the frame waits.                                                                         *)
Step(s, k) ==
    LET sl == slot[k]
        isHeld == s \in sl.held /\ Fault # "frames after a barrier are not held back"
        fromQueue == ~isHeld /\ sl.queue[s] # <<>>
        frame == IF fromQueue THEN Head(sl.queue[s]) ELSE Head(channel[s][k])
        taken == IF fromQueue THEN [sl EXCEPT !.queue[s] = Tail(@)] ELSE sl
    IN
    /\ fromQueue \/ channel[s][k] # <<>>
    /\ channel' = IF fromQueue THEN channel ELSE [channel EXCEPT ![s][k] = Tail(@)]
    /\ IF isHeld
       THEN /\ slot' = [slot EXCEPT ![k].queue[s] = Append(@, frame)]
            /\ staged' = staged
       ELSE IF IsRecord(frame)
       THEN /\ slot' = [slot EXCEPT ![k] = [taken EXCEPT !.counted = @ \cup {frame.record},
                                                         !.open = @ \cup {frame.record}]]
            /\ staged' = staged
       ELSE LET after == IF frame.mode = "unaligned" /\ frame.id > sl.done THEN sl ELSE OnBarrier(taken, s, frame.id, k) IN
            /\ frame.mode = "unaligned" => frame.id <= sl.done  \* else the cut is taken first, see CutUnaligned
            /\ slot' = [slot EXCEPT ![k] = after]
            /\ staged' = staged \cup (IF after.done = frame.id /\ sl.done < frame.id THEN Stage(sl, frame.id, k) ELSE {})
    /\ UNCHANGED <<width, attempt, position, sent, ordered, pending, aborts, latest, savepoint, committed, triggered, givenUp, crashes>>

(* An unaligned barrier acts when it arrives, wherever it stands. What an older, aligned checkpoint held back is released *)
(* first: it stands before the barrier, or the barrier is among it.                                                       *)
Before(q, c) ==  \* the frames of q up to the barrier of c; all, if it is not there
    LET at == {i \in DOMAIN q : IsBarrierOf(q[i], c)}
    IN IF at = {} THEN q ELSE SubSeq(q, 1, (CHOOSE i \in at : TRUE) - 1)

HasBarrier(q, c) == \E i \in DOMAIN q : IsBarrierOf(q[i], c)

CutUnaligned(k, c) ==
    LET sl == slot[k]
        all(s) == sl.queue[s] \o channel[s][k]
        collected(s) == IF Fault = "an unaligned cut misses held frames" /\ s \in sl.held
                        THEN Before(channel[s][k], c) ELSE Before(all(s), c)
        inflight == UNION {RecordsOf(collected(s)) : s \in Sources}
    IN
    /\ c > sl.done
    /\ \E i \in DOMAIN ordered : ordered[i].id = c /\ ordered[i].mode = "unaligned"
    /\ \E s \in Sources : HasBarrier(all(s), c)
    /\ slot' = [slot EXCEPT ![k] = Cut(sl, c, k, inflight, {s \in Sources : ~HasBarrier(all(s), c)})]
    /\ staged' = staged \cup Stage(sl, c, k)
    /\ UNCHANGED <<width, attempt, position, sent, channel, ordered, pending, aborts, latest, savepoint, committed, triggered, givenUp, crashes>>

(* The snapshot is stored, and then acknowledged. An answer that nobody waits for changes nothing.                        *)
Acknowledge(k) ==
    /\ slot[k].upload.id # 0
    /\ slot[k].upload.capturing = {} \/ Fault = "acknowledged before the capture is whole"
    /\ pending' = IF pending.id = slot[k].upload.id
                  THEN [pending EXCEPT !.parts = [@ EXCEPT ![k] = {slot[k].upload.part}]] ELSE pending
    /\ slot' = [slot EXCEPT ![k].upload = Nothing]
    /\ UNCHANGED <<width, attempt, position, sent, channel, ordered, aborts, latest, savepoint, staged, committed, triggered, givenUp, crashes>>

HearAbort(k, c) ==
    /\ c \in aborts[k]
    /\ aborts' = [aborts EXCEPT ![k] = @ \ {c}]
    /\ slot' = [slot EXCEPT ![k] =
          [@ EXCEPT !.held = IF slot[k].aligning = c /\ Fault # "given up, and nothing is released" THEN {} ELSE @,
                    !.aligning = IF @ = c THEN 0 ELSE @,
                    !.done = Max(@, c),
                    !.upload = IF @.id = c THEN Nothing ELSE @]]
    /\ UNCHANGED <<width, attempt, position, sent, channel, ordered, pending, latest, savepoint, staged, committed, triggered, givenUp, crashes>>

(* A transaction whose checkpoint is in the log becomes visible. Asked twice, the sink answers that it is done.           *)
Commit(k, p) ==
    /\ p \in slot[k].prepared
    /\ p.id <= latest.id \/ Fault = "committed before the log record"
    /\ committed' = committed \cup {p}
    /\ staged' = staged \ {p}
    /\ slot' = [slot EXCEPT ![k].prepared = @ \ {p}]
    /\ UNCHANGED <<width, attempt, position, sent, channel, ordered, pending, aborts, latest, savepoint, triggered, givenUp, crashes>>

-----------------------------------------------------------------------------
(* The driver                                                                                                             *)

AllRead == /\ \A s \in Sources : position[s] = NRecords + 1
           /\ \A k \in Slots : \A s \in Sources : channel[s][k] = <<>> /\ slot[k].queue[s] = <<>>
Visible == UNION {p.rows : p \in committed}
Finished == Visible = Records /\ pending.id = 0

Trigger(mode) ==
    LET c == Max(latest.id, Max(savepoint.id, IF ordered = <<>> THEN 0 ELSE ordered[Len(ordered)].id)) + 1
        final == AllRead /\ \E k \in Slots : slot[k].open # {} \/ \E p \in slot[k].prepared : p.id > latest.id
    IN
    /\ pending.id = 0
    /\ ~Stopped
    /\ triggered < MaxCheckpoints \/ (final /\ mode = "aligned")
    /\ triggered' = IF triggered < MaxCheckpoints THEN triggered + 1 ELSE triggered
    /\ ordered' = Append(ordered, [id |-> c, mode |-> mode])
    /\ pending' = [id |-> c, mode |-> mode, position |-> [s \in Sources |-> 0], parts |-> [k \in AllSlots |-> {}]]
    /\ UNCHANGED <<width, attempt, position, sent, channel, slot, aborts, latest, savepoint, staged, committed, givenUp, crashes>>

(* Declined, or it took too long.                                                                                         *)
GiveUp ==
    /\ pending.id # 0
    /\ givenUp < MaxGivenUp
    /\ givenUp' = givenUp + 1
    /\ aborts' = [k \in AllSlots |-> IF k <= width THEN aborts[k] \cup {pending.id} ELSE {}]
    /\ pending' = Nothing
    /\ UNCHANGED <<width, attempt, position, sent, channel, slot, ordered, latest, savepoint, staged, committed, triggered, crashes>>

(* All have answered: the record in the log makes it count. A plain savepoint is stored, and is in no log.                *)
Complete ==
    LET parts == UNION {pending.parts[k] : k \in Slots}
        snapshot == [id |-> pending.id, position |-> pending.position,
                     counted |-> UNION {p.counted : p \in parts}, prepared |-> UNION {p.prepared : p \in parts},
                     inflight |-> UNION {p.inflight : p \in parts}, stop |-> pending.mode = "stop", attempt |-> attempt]
    IN
    /\ pending.id # 0
    /\ \A s \in Sources : pending.position[s] # 0
    /\ \A k \in Slots : pending.parts[k] # {} \/ (Fault = "complete without the last answer" /\ k = width /\ k > 1)
    /\ IF pending.mode = "savepoint"
       THEN savepoint' = snapshot /\ latest' = latest
       ELSE latest' = snapshot /\ savepoint' = savepoint
    /\ pending' = Nothing
    /\ UNCHANGED <<width, attempt, position, sent, channel, slot, ordered, aborts, staged, committed, triggered, givenUp, crashes>>

(* A stop is in the log, and what it holds is committed: the job continues from it, at any width.                         *)
Continue ==
    /\ Stopped
    /\ latest.prepared \subseteq committed
    /\ attempt' = attempt + 1
    /\ \E w \in Widths : Start(latest, w)
    /\ UNCHANGED <<latest, savepoint, committed, triggered, givenUp, crashes>>

End == Finished /\ UNCHANGED vars  \* so that every other state in which nothing can happen is a deadlock

Next ==
    \/ \E s \in Sources : Emit(s) \/ SendBarrier(s)
    \/ \E s \in Sources, k \in Slots : Step(s, k)
    \/ \E k \in Slots : Acknowledge(k)
    \/ \E k \in Slots : \E i \in DOMAIN ordered : CutUnaligned(k, ordered[i].id)
    \/ \E k \in Slots : \E c \in aborts[k] : HearAbort(k, c)
    \/ \E k \in Slots : \E p \in slot[k].prepared : Commit(k, p)
    \/ \E mode \in Modes : Trigger(mode)
    \/ GiveUp \/ Complete \/ Continue \/ Crash \/ End

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold                                                                                                         *)

ReadBefore(snapshot) == {r \in Records : r[2] < snapshot.position[r[1]]}

(* A snapshot is a consistent cut: each record before the sources' positions is counted or under way, not both; no other  *)
(* is; and each record that is counted is in output that was prepared or is visible.                                      *)
IsCut(snapshot) ==
    /\ snapshot.counted \cup snapshot.inflight = ReadBefore(snapshot)
    /\ snapshot.counted \cap snapshot.inflight = {}
    /\ snapshot.counted \subseteq UNION {p.rows : p \in snapshot.prepared \cup committed}
ConsistentCut == IsCut(latest) /\ IsCut(savepoint)

(* No record is visible twice.                                                                                            *)
NothingTwice == \A p, q \in committed : p # q => p.rows \cap q.rows = {}

(* Nothing is visible that the log does not know: a restore would write it again.                                         *)
CommitsAfterTheLog == Visible \subseteq latest.counted

(* What the log's snapshot has prepared is still there to be committed, or visible.                                       *)
NothingThrownAway == latest.prepared \subseteq staged \cup committed

(* Nothing is lost on the way: what the sources have read is counted, or under way, in this very moment.                  *)
NothingLost ==
    LET k_counted == UNION {slot[k].counted : k \in Slots}
        under_way == UNION {UNION {RecordsOf(slot[k].queue[s] \o channel[s][k]) : s \in Sources} : k \in Slots}
    IN /\ k_counted \cup under_way = {r \in Records : r[2] < position[r[1]]}
       /\ k_counted \cap under_way = {}

(* Output of this attempt that nobody would ever commit.                                                                  *)
CountedIsWritten ==
    \A k \in Slots : \A r \in slot[k].counted :
        r \in slot[k].open \/ r \in Visible \/ \E j \in Slots : \E p \in slot[j].prepared : r \in p.rows
=============================================================================
