------------------------------- MODULE Traces -------------------------------
(* Runs of the product, each of which must be a behaviour of Layers.tla. Runs.tla is written by tests/traces.py: of each  *)
(* run, in order, what happened. An event is an action of Layers.tla with its arguments. A run that can be followed to     *)
(* its end, with nothing broken on the way, is printed; where another one stops is a deadlock.                            *)
EXTENDS Layers, Runs, TLC

VARIABLES run, at

Happens(e) ==
    CASE e[1] = "take over"   -> TakeOver(e[2], e[3])
      [] e[1] = "logged"      -> LogCheckpoint(e[2], e[3])
      [] e[1] = "savepoint"   -> StoreSavepoint(e[2])
      [] e[1] = "finished"    -> Finish(e[2])
      [] e[1] = "attempt"     -> Begin(e[2], e[3], e[4], e[5])
      [] e[1] = "trigger"     -> Trigger(e[2], e[3], e[4])
      [] e[1] = "heard"       -> HearAcknowledgement(e[2], e[3])
      [] e[1] = "give up"     -> GiveUp(e[2])
      [] e[1] = "notify"      -> NotifyComplete(e[2])
      [] e[1] = "restore"     -> Restore(e[2], e[3], e[4], e[5], e[6], e[7])
      [] e[1] = "open"        -> Open(e[2])
      [] e[1] = "barrier"     -> TakeBarrier(e[2], e[3], e[4], e[5], e[6])
      [] e[1] = "forward"     -> Forward(e[2], e[3], e[4], e[5], e[6], e[7])
      [] e[1] = "taken"       -> Taken(e[2], e[3], e[4], e[5])
      [] e[1] = "acknowledge" -> Acknowledge(e[2], e[3], e[4], e[5], e[6])
      [] e[1] = "decline"     -> Decline(e[2], e[3])
      [] e[1] = "abort"       -> HearAbort(e[2], e[3])
      [] e[1] = "complete"    -> HearComplete(e[2], e[3])
      [] e[1] = "commit"      -> AskToCommit(e[2], e[3], e[4])
      [] e[1] = "forget"      -> Forget(e[2], e[3])
      [] e[1] = "committed"   -> SayCommitted(e[2], e[3])
      [] e[1] = "older"       -> AskOfOlder(e[2])

TraceInit == Init /\ run \in DOMAIN Runs /\ at = 1

NothingIsBroken == ConsistentCut /\ NobodyIsMissing /\ CommitsAfterTheLog /\ NothingThrownAway
                   /\ SavepointsAreCovered /\ FinishedIsCommitted

TraceNext == \/ /\ at <= Len(Runs[run])
                /\ Happens(Runs[run][at])
                /\ NothingIsBroken'
                /\ at' = at + 1
                /\ run' = run
                /\ IF at = Len(Runs[run]) THEN PrintT(<<"followed", run>>) ELSE TRUE
             \/ /\ at > Len(Runs[run])
                /\ UNCHANGED <<vars, run, at>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, run, at>>
=============================================================================
