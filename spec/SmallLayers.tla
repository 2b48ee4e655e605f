----------------------------- MODULE SmallLayers -----------------------------
(* Layers.tla on small bounds, for TLC: every step that is possible, with every argument. So what runs are compared with  *)
(* is itself known to keep what it says.                                                                                  *)
EXTENDS Layers

CONSTANTS Shapes,  \* the widths that a job may run with, each a sequence
          MaxRecords, MaxCheckpoints, MaxGivenUp, MaxCrashes,
          MayTurn, Savepoints, Concurrent  \* unaligned ones too; plain savepoints too; how many at a time

VARIABLES triggered, givenUp, crashes

all == <<log, attempt, checkpoints, slot, committed, triggered, givenUp, crashes>>
Same == UNCHANGED <<triggered, givenUp, crashes>>

SmallInit == /\ triggered = 0 /\ givenUp = 0 /\ crashes = 0
             /\ Init

(* All that was under way, and all that is to be committed, comes to one slot: which, nothing depends on.                 *)
Heir(k) == k = <<Len(attempt.widths), 1>>

Starts ==
    \/ /\ log.gen = 0
       /\ TakeOver(1, 0)
       /\ Same
    \/ /\ log.gen # 0 /\ attempt.gen = 0
       /\ \E widths \in Shapes : Begin(log.gen, 1, 0, widths)
       /\ Same
    \/ /\ attempt.gen # 0 /\ crashes < MaxCrashes
       /\ \E widths \in Shapes, from \in {0, log.latest} : Begin(log.gen, attempt.number + 1, from, widths)
       /\ crashes' = crashes + 1
       /\ UNCHANGED <<triggered, givenUp>>

Open_ == {c \in DOMAIN checkpoints : checkpoints[c].state = "pending"}

Driver ==
    \/ /\ triggered < MaxCheckpoints
       /\ Cardinality(Open_) < Concurrent
       /\ \A k \in DOMAIN slot : slot[k].open
       /\ DOMAIN slot # {}
       /\ triggered' = triggered + 1
       /\ UNCHANGED <<givenUp, crashes>>
       /\ \E turns \in MayTurn, commits \in {TRUE} \cup (IF Savepoints THEN {FALSE} ELSE {}) : Trigger(triggered + 1, turns, commits)
    \/ /\ givenUp < MaxGivenUp
       /\ givenUp' = givenUp + 1
       /\ UNCHANGED <<triggered, crashes>>
       /\ \E c \in Open_ : GiveUp(c)
    \/ /\ Same
       /\ \/ \E c \in Open_ : LogCheckpoint(log.gen, c) \/ StoreSavepoint(c)
          \/ \E c \in Open_, k \in DOMAIN slot : k \notin checkpoints[c].heard /\ HearAcknowledgement(k, c)
          \/ log.latest = MaxCheckpoints /\ ~log.finished /\ Finish(log.gen)

Nth(k, ch) == [slot[k].passed EXCEPT ![ch] = @ + 1]
Sends(k) == {sent \in [1..Below(k) -> 0..MaxRecords] : \A i \in DOMAIN sent : sent[i] >= Sent(k, i)}
Piece(k, c) == IF Below(k) = 0 THEN {<<c, k[2]>>} ELSE {}

SlotSteps(k) ==
    LET s == slot[k] IN
    \/ /\ ~s.told
       /\ LET held == log.shelf[attempt.from] IN
          IF Heir(k) THEN Restore(k, attempt.from, held.underWay, held.underWay, held.prepared, TRUE)
          ELSE Restore(k, attempt.from, 0, 0, {}, TRUE)
    \/ Open(k)
    \/ s.left > 0 /\ Pass(k, s.passed, s.left - 1)
    \/ \E ch \in 1..Above(k) : s.passed[ch] < MaxRecords /\ Pass(k, Nth(k, ch), 0)
    \/ \E ch \in 1..Above(k) : \E i \in DOMAIN s.marks[ch] : TakeBarrier(k, ch, s.marks[ch][i][1], s.passed, s.left)
    \/ \E c \in DOMAIN checkpoints, cut \in BOOLEAN, sent \in Sends(k) : Forward(k, c, cut, s.passed, s.left, sent)
    \/ \E cut \in s.cuts :
        \/ ~cut.taken /\ Taken(k, cut.id, checkpoints[cut.id].out[k], s.prepared \cup Piece(k, cut.id))
        \/ /\ cut.taken
           /\ \A ch \in cut.waiting : <<k[1] - 1, ch>> \in DOMAIN checkpoints[cut.id].out
           /\ LET captured == IF Fault = "what arrives after the cut is not captured" THEN Zeros(Above(k))
                              ELSE UnderWayTo(k, cut.id, cut)
              IN Acknowledge(k, cut.id, captured, cut.left, Total(captured) + cut.left)
    \/ \E c \in DOMAIN checkpoints : checkpoints[c].state = "aborted" /\ (c > s.done \/ HasCut(s, c)) /\ HearAbort(k, c)
    \/ \E c \in log.ids : c > s.done /\ HearComplete(k, c)
    \/ \E goal \in log.ids \cup {attempt.from} \cup DOMAIN checkpoints :
        LET due == {p \in s.prepared : p[1] <= goal} IN due \ committed # {} /\ AskToCommit(k, goal, due)
    \/ s.prepared \cap committed # {} /\ Forget(k, s.prepared \cap committed)

SmallNext == Starts \/ Driver \/ (Same /\ \E k \in DOMAIN slot : SlotSteps(k))

SmallSpec == SmallInit /\ [][SmallNext]_all
=============================================================================
