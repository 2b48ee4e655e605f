------------------------------- MODULE Layers -------------------------------
(* The same protocol for any number of layers, with counts in place of records: what real runs are compared with.        *)
(*                                                                                                                        *)
(*   slots <<1, 1>> <<1, 2>>      each slot of a layer has a channel to each slot of the next one; the first layer reads  *)
(*            |  X  |             sources. A channel is the number of records that its receiver has passed, and the       *)
(*   slots <<2, 1>> <<2, 2>>      barriers that are under way on it, each with the number of records before it.           *)
(*                                                                                                                        *)
(* Every action takes what a run can tell of it as arguments: Traces.tla takes them from a run, Next chooses them.        *)
(* More than in Snapshots.tla: several checkpoints at a time, at least once, alignments that are overtaken, what a sink   *)
(* has prepared piece by piece, a committer that is asked before it answers. Less: keys, so nothing is said of who owns a *)
(* record after a restore; only that as many are restored as were under way.                                              *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Fault

VARIABLES log,          \* the newest record of the job's log, and what the checkpoints that it may go back to hold
          attempt,      \* which one runs, from what, with how many slots in each layer
          checkpoints,  \* of this attempt, by id: what the driver knows, and what slots have said
          slot,         \* of this attempt
          committed     \* pieces of output that are visible, as far as a checkpoint may still name them

vars == <<log, attempt, checkpoints, slot, committed>>

Max(a, b) == IF a > b THEN a ELSE b
Put(f, key, value) == [x \in DOMAIN f \cup {key} |-> IF x = key THEN value ELSE f[x]]
Total(f) == LET RECURSIVE Sum(_)
                Sum(rest) == IF rest = {} THEN 0 ELSE LET x == CHOOSE x \in rest : TRUE IN f[x] + Sum(rest \ {x})
            IN Sum(DOMAIN f)

Above(k) == IF k[1] = 1 THEN 0 ELSE attempt.widths[k[1] - 1]  \* channels into slot k
Below(k) == IF k[1] = Len(attempt.widths) THEN 0 ELSE attempt.widths[k[1] + 1]
Zeros(n) == [i \in 1..n |-> 0]

NoAttempt == [gen |-> 0, number |-> 0, from |-> 0, widths |-> <<>>, exact |-> TRUE]
SlotsOf(widths) == UNION {{<<l, i>> : i \in 1..widths[l]} : l \in DOMAIN widths}
Held(pieces, underWay) == [prepared |-> pieces, underWay |-> underWay]

EmptySlot(above) ==
    [told |-> FALSE,                            \* it has what it continues from
     open |-> FALSE,                            \* input flows
     left |-> 0,                                \* restored records that have not been passed
     moved |-> 0,                               \* of these, as they were restored, those that one slot has
     passed |-> Zeros(above),                   \* of each channel
     marks |-> [ch \in 1..above |-> <<>>],      \* barriers under way: <<id, records before it>>
     arrived |-> {},                            \* <<id, channel>>: taken in its place, of those that are aligning
     aligning |-> 0,                            \* whose channels are held back; 0: none, or at least once
     done |-> 0,                                \* up to here nothing is begun any more
     over |-> {},                               \* given up, above `done`
     cuts |-> {},                               \* snapshots that are not acknowledged
     prepared |-> {}]                           \* pieces of output that are not known to be committed: <<id, piece>>

Init == /\ log = [gen |-> 0, latest |-> 0, ids |-> {}, shelf |-> [c \in {0} |-> Held({}, 0)], finished |-> FALSE]
        /\ attempt = NoAttempt
        /\ checkpoints = <<>>
        /\ slot = <<>>
        /\ committed = {}

-----------------------------------------------------------------------------
(* The log                                                                                                                *)

(* A driver takes the job over. It may name an older checkpoint, or a savepoint.                                         *)
TakeOver(gen, latest) ==
    /\ gen > log.gen
    /\ latest \in DOMAIN log.shelf
    /\ log' = [log EXCEPT !.gen = gen, !.latest = latest, !.finished = FALSE]
    /\ UNCHANGED <<attempt, checkpoints, slot, committed>>

Pieces(c) == UNION {checkpoints[c].parts[k].prepared : k \in DOMAIN checkpoints[c].parts}
UnderWay(c) == Total([k \in DOMAIN checkpoints[c].parts |-> checkpoints[c].parts[k].moved])
IsWhole(c) == checkpoints[c].heard = DOMAIN slot \/ (Fault = "complete without the last answer" /\ checkpoints[c].heard # {})

LogCheckpoint(gen, c) ==
    /\ gen = log.gen /\ gen = attempt.gen
    /\ c \in DOMAIN checkpoints
    /\ checkpoints[c].state = "pending" /\ checkpoints[c].commits /\ IsWhole(c)
    /\ c > log.latest
    /\ log' = [log EXCEPT !.latest = c, !.ids = @ \cup {c},
                          !.shelf = [x \in {y \in DOMAIN @ : y + 8 > c} \cup {c} |->
                                        IF x = c THEN Held(Pieces(c), UnderWay(c)) ELSE @[x]]]
    /\ checkpoints' = [checkpoints EXCEPT ![c].state = "logged"]
    /\ committed' = committed \cap Pieces(c)
    /\ UNCHANGED <<attempt, slot>>

(* A plain savepoint stands once a checkpoint after it counts: that one commits the same.                                *)
StoreSavepoint(c) ==
    /\ c \in DOMAIN checkpoints
    /\ checkpoints[c].state = "pending" /\ ~checkpoints[c].commits /\ IsWhole(c)
    /\ log.latest > c \/ Fault = "a savepoint stands by itself"
    /\ log' = [log EXCEPT !.shelf = Put(@, c, Held(Pieces(c), UnderWay(c)))]
    /\ checkpoints' = [checkpoints EXCEPT ![c].state = "stored"]
    /\ UNCHANGED <<attempt, slot, committed>>

Finish(gen) ==
    /\ gen = log.gen
    /\ log.shelf[log.latest].prepared \subseteq committed \/ Fault = "finished before all is committed"
    /\ log.shelf[log.latest].underWay = 0 \/ Fault = "finished before all is processed"
    /\ log' = [log EXCEPT !.finished = TRUE]
    /\ UNCHANGED <<attempt, checkpoints, slot, committed>>

-----------------------------------------------------------------------------
(* The driver                                                                                                             *)

(* Whatever ended the one before: the next attempt continues from what the log names.                                    *)
Begin(gen, number, from, widths) ==
    /\ gen = log.gen
    /\ gen > attempt.gen \/ number > attempt.number
    /\ from = log.latest \/ Fault = "continued from an older one"
    /\ attempt' = [gen |-> gen, number |-> number, from |-> from, widths |-> widths, exact |-> TRUE]
    /\ checkpoints' = <<>>
    /\ slot' = [k \in SlotsOf(widths) |-> EmptySlot(IF k[1] = 1 THEN 0 ELSE widths[k[1] - 1])]
    /\ UNCHANGED <<log, committed>>

(* All that the checkpoint holds has come to some slot, and to one only.                                                 *)
AllRestored ==
    /\ \A k \in DOMAIN slot : slot[k].told /\ slot[k].open
    /\ attempt.from # 0 => Total([k \in DOMAIN slot |-> slot[k].moved]) = log.shelf[attempt.from].underWay

(* `mayTurn`: its barriers may overtake records. `commits`: it gets a record in the log.                                 *)
Trigger(c, mayTurn, commits) ==
    /\ checkpoints = <<>> => AllRestored
    /\ c > log.latest
    /\ \A other \in DOMAIN checkpoints : c > other
    /\ checkpoints' = Put(checkpoints, c, [state |-> "pending", mayTurn |-> mayTurn, commits |-> commits, heard |-> {},
                                           out |-> <<>>, parts |-> <<>>])
    /\ UNCHANGED <<log, attempt, slot, committed>>

HearAcknowledgement(k, c) ==
    /\ c \in DOMAIN checkpoints
    /\ k \in DOMAIN checkpoints[c].parts
    /\ checkpoints' = [checkpoints EXCEPT ![c].heard = @ \cup {k}]
    /\ UNCHANGED <<log, attempt, slot, committed>>

GiveUp(c) ==
    /\ c \in DOMAIN checkpoints
    /\ checkpoints[c].state = "pending"
    /\ checkpoints' = [checkpoints EXCEPT ![c].state = "aborted"]
    /\ UNCHANGED <<log, attempt, slot, committed>>

NotifyComplete(c) ==
    /\ c \in log.ids
    /\ UNCHANGED vars

-----------------------------------------------------------------------------
(* A slot's start                                                                                                         *)

(* `left` restored records, `moved` of which are this slot's alone (a broadcast's are restored at each); what to commit. *)
Restore(k, from, left, moved, pieces, exact) ==
    /\ k \in DOMAIN slot
    /\ from = attempt.from
    /\ ~slot[k].told
    /\ pieces \subseteq log.shelf[from].prepared
    /\ \A other \in DOMAIN slot : other # k => slot[other].prepared \cap pieces = {}
    /\ slot' = [slot EXCEPT ![k] = [@ EXCEPT !.told = TRUE, !.left = left, !.moved = moved, !.prepared = pieces]]
    /\ attempt' = [attempt EXCEPT !.exact = exact]
    /\ UNCHANGED <<log, checkpoints, committed>>

(* What it was given to commit is committed; then input flows.                                                            *)
Open(k) ==
    /\ slot[k].told /\ ~slot[k].open
    /\ slot[k].prepared \subseteq committed
    /\ slot' = [slot EXCEPT ![k].open = TRUE]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

-----------------------------------------------------------------------------
(* Records and barriers                                                                                                   *)

HeldChannels(s) == IF attempt.exact /\ Fault # "frames after a barrier are not held back"
                   THEN {a[2] : a \in {b \in s.arrived : b[1] = s.aligning}} ELSE {}

(* The first barrier of a channel that still has something to say. Records after it wait.                                *)
Barriers(s, ch) == SelectSeq(s.marks[ch], LAMBDA mark : mark[1] > s.done)

(* Written without disjunctions: TLC would try each of them as a step of its own.                                        *)
MayPass(s, now, left) ==
    /\ left <= s.left
    /\ IF s.open THEN TRUE ELSE left = s.left /\ now = s.passed
    /\ IF now = s.passed THEN TRUE ELSE left = 0  \* restored ones go first
    /\ \A ch \in DOMAIN now :
        IF now[ch] = s.passed[ch] THEN TRUE
        ELSE /\ now[ch] > s.passed[ch]
             /\ ch \notin HeldChannels(s)
             /\ LET waiting == Barriers(s, ch) IN IF waiting = <<>> THEN TRUE ELSE now[ch] <= waiting[1][2]

Passing(s, now, left) == [s EXCEPT !.passed = now, !.left = left]

Pass(k, now, left) ==
    /\ MayPass(slot[k], now, left)
    /\ slot' = [slot EXCEPT ![k] = Passing(@, now, left)]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

GivenUp(s, c) ==
    LET done == IF s.aligning = c THEN Max(s.done, c) ELSE s.done IN
    [s EXCEPT !.over = {x \in @ \cup {c} : x > done},
              !.done = done,
              !.arrived = {a \in @ : a[1] # c},
              !.aligning = IF @ = c THEN 0 ELSE @,
              !.cuts = {cut \in @ : cut.id # c}]

(* All barriers of it have come: the snapshot is what must come next.                                                     *)
Due(k, s) == {c \in {a[1] : a \in s.arrived} : {b \in s.arrived : b[1] = c} = {<<c, ch>> : ch \in 1..Above(k)}}

(* A barrier in its place among the frames of its channel.                                                               *)
TakeBarrier(k, ch, c, now, left) ==
    LET s == Passing(slot[k], now, left)
        places == {i \in DOMAIN s.marks[ch] : s.marks[ch][i][1] = c}
        at == CHOOSE i \in places : TRUE
        after == [s EXCEPT !.marks[ch] = SubSeq(@, at + 1, Len(@))]
        ignored == c <= s.done \/ c \in s.over \/ (attempt.exact /\ c < s.aligning)
        free == IF attempt.exact /\ s.aligning \notin {0, c} THEN GivenUp(after, s.aligning) ELSE after
    IN
    /\ MayPass(slot[k], now, left)
    /\ Due(k, slot[k]) = {}
    /\ left = 0
    /\ places # {}
    /\ \A i \in 1..(at - 1) : s.marks[ch][i][1] <= s.done
    /\ s.marks[ch][at][2] = now[ch]
    /\ ch \notin HeldChannels(s)
    /\ slot' = [slot EXCEPT ![k] = IF ignored THEN after
                                   ELSE [free EXCEPT !.arrived = @ \cup {<<c, ch>>}, !.aligning = IF attempt.exact THEN c ELSE 0]]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

Sent(k, i) ==  \* from slot k to slot i of the next layer, as far as it is known
    LET to == slot[<<k[1] + 1, i>>]
        marks == to.marks[k[2]] IN
    IF marks = <<>> THEN to.passed[k[2]] ELSE Max(to.passed[k[2]], marks[Len(marks)][2])

(* The barrier goes on, after `sent` records to each slot below, and the snapshot is taken: of what was passed, and with  *)
(* `cut` of what is under way before the barriers as well.                                                                *)
Forward(k, c, cut, now, left, sent) ==
    LET before == Passing(slot[k], now, left)
        s == IF before.aligning \notin {0, c} THEN GivenUp(before, before.aligning) ELSE before
        here == {a[2] : a \in {b \in s.arrived : b[1] = c}}
        \* Behind its barrier nothing was passed on a channel that has brought it.
        waiting == IF cut THEN (1..Above(k)) \ here ELSE {}
        after == [s EXCEPT !.done = c, !.aligning = 0, !.arrived = {a \in @ : a[1] > c}, !.over = {x \in @ : x > c},
                           !.cuts = @ \cup {[id |-> c, passed |-> now, left |-> left, waiting |-> waiting, prepared |-> {}, taken |-> FALSE]}]
    IN
    /\ MayPass(slot[k], now, left)
    /\ slot[k].open
    /\ c \in DOMAIN checkpoints
    /\ c > slot[k].done /\ c \notin slot[k].over /\ c >= slot[k].aligning
    /\ Due(k, slot[k]) \subseteq {c}
    /\ cut => /\ checkpoints[c].mayTurn
              /\ Above(k) = 0 \/ here # {} \/ \E ch \in 1..Above(k) : \E i \in DOMAIN s.marks[ch] : s.marks[ch][i][1] = c
    /\ ~cut => left = 0 /\ here = 1..Above(k)
    /\ Len(sent) = Below(k)
    /\ \A i \in DOMAIN sent : sent[i] >= Sent(k, i)
    /\ slot' = [x \in DOMAIN slot |->
                  IF x = k THEN after
                  ELSE IF x[1] = k[1] + 1 THEN [slot[x] EXCEPT !.marks[k[2]] = Append(@, <<c, sent[x[2]]>>)] ELSE slot[x]]
    /\ checkpoints' = [checkpoints EXCEPT ![c].out = Put(@, k, sent)]
    /\ UNCHANGED <<log, attempt, committed>>

CutOf(s, c) == CHOOSE cut \in s.cuts : cut.id = c
HasCut(s, c) == \E cut \in s.cuts : cut.id = c

(* The synchronous part is over: nothing was sent meanwhile. All that is not known to be committed is in the snapshot.    *)
Taken(k, c, sent, pieces) ==
    LET s == slot[k]
        cut == CutOf(s, c) IN
    /\ HasCut(s, c) /\ ~cut.taken
    /\ sent = checkpoints[c].out[k]
    /\ s.prepared \subseteq pieces
    /\ \A p \in pieces \ s.prepared : p[1] <= c
    /\ slot' = [slot EXCEPT ![k].prepared = pieces,
                            ![k].cuts = (@ \ {cut}) \cup {[cut EXCEPT !.taken = TRUE, !.prepared = pieces]}]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

(* Of each channel, the records that a cut must hold: those that were sent before the barrier and not passed.            *)
UnderWayTo(k, c, cut) ==
    [ch \in 1..Above(k) |-> IF ch \in cut.waiting THEN checkpoints[c].out[<<k[1] - 1, ch>>][k[2]] - cut.passed[ch] ELSE 0]

Acknowledge(k, c, captured, left, moved) ==
    LET s == slot[k]
        cut == CutOf(s, c) IN
    IF HasCut(s, c)
    THEN /\ cut.taken
         /\ \A ch \in cut.waiting : <<k[1] - 1, ch>> \in DOMAIN checkpoints[c].out
         /\ captured = UnderWayTo(k, c, cut) \/ Fault = "what arrives after the cut is not captured"
         /\ left = cut.left
         /\ checkpoints' = [checkpoints EXCEPT ![c].parts = Put(@, k,
                [passed |-> [ch \in 1..Above(k) |-> cut.passed[ch] + captured[ch]], prepared |-> cut.prepared, moved |-> moved])]
         /\ slot' = [slot EXCEPT ![k].cuts = @ \ {cut}]
         /\ UNCHANGED <<log, attempt, committed>>
    ELSE /\ c \in s.over \/ c <= s.done  \* it was given up when its upload had begun: nobody waits for it
         /\ UNCHANGED vars

(* It declines, or the snapshot could not be taken.                                                                       *)
Decline(k, c) ==
    /\ slot' = [slot EXCEPT ![k] = IF c > @.done \/ HasCut(@, c) \/ @.aligning = c THEN GivenUp(@, c) ELSE @]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

HearAbort(k, c) ==
    /\ c \in DOMAIN checkpoints
    /\ checkpoints[c].state = "aborted"
    /\ slot' = [slot EXCEPT ![k] = IF c > @.done \/ HasCut(@, c) \/ @.aligning = c THEN GivenUp(@, c) ELSE @]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

HearComplete(k, c) ==
    /\ c \in log.ids
    /\ slot' = [slot EXCEPT ![k] = [@ EXCEPT !.done = Max(@, c), !.arrived = {a \in @ : a[1] > c}, !.over = {x \in @ : x > c},
                                             !.aligning = IF @ <= c THEN 0 ELSE @]]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

-----------------------------------------------------------------------------
(* The second phase                                                                                                       *)

Counts(goal) == goal \in log.ids \/ (goal = attempt.from /\ goal # 0)

(* The committer is asked for what was prepared up to `goal`. A slot of an older attempt may wake up and do so, too.      *)
AskToCommit(k, goal, pieces) ==
    /\ Counts(goal) \/ Fault = "committed before the log record"
    /\ \A p \in pieces : p[1] <= goal
    /\ pieces \subseteq slot[k].prepared
    /\ committed' = committed \cup pieces  \* it may be visible from now on, whatever is answered
    /\ UNCHANGED <<log, attempt, checkpoints, slot>>

AskOfOlder(goal) ==
    /\ goal \in log.ids \/ goal \in DOMAIN log.shelf
    /\ UNCHANGED vars

(* The answer is there: only then is a piece forgotten.                                                                   *)
Forget(k, pieces) ==
    /\ pieces \subseteq slot[k].prepared
    /\ pieces \subseteq committed
    /\ slot' = [slot EXCEPT ![k].prepared = @ \ pieces]
    /\ UNCHANGED <<log, attempt, checkpoints, committed>>

SayCommitted(k, c) ==
    /\ Counts(c)
    /\ \A p \in slot[k].prepared : p[1] > c
    /\ UNCHANGED vars

-----------------------------------------------------------------------------
(* What must hold                                                                                                         *)

(* Of a checkpoint that counts: on each channel, what was passed before the snapshot and what the snapshot holds of it    *)
(* are the records that were sent before the barrier.                                                                     *)
ConsistentCut ==
    attempt.exact =>
    \A c \in DOMAIN checkpoints : checkpoints[c].state \in {"logged", "stored"} =>
        \A k \in DOMAIN checkpoints[c].parts : \A ch \in 1..Above(k) :
            checkpoints[c].parts[k].passed[ch] = checkpoints[c].out[<<k[1] - 1, ch>>][k[2]]

(* Each slot has answered.                                                                                                *)
NobodyIsMissing ==
    \A c \in DOMAIN checkpoints : checkpoints[c].state \in {"logged", "stored"} => DOMAIN checkpoints[c].parts = DOMAIN slot

(* Nothing is visible of a checkpoint that does not count.                                                               *)
CommitsAfterTheLog == \A p \in committed : \E c \in log.ids \cup DOMAIN log.shelf : p[1] <= c /\ c # 0 /\ c <= Max(log.latest, attempt.from)

(* What the newest checkpoint has prepared is visible, or a slot that has been told of it still will commit it.          *)
NothingThrownAway ==
    (checkpoints # <<>> \/ log.finished) =>
    \A p \in log.shelf[log.latest].prepared : p \in committed \/ \E k \in DOMAIN slot : p \in slot[k].prepared

SavepointsAreCovered == \A c \in DOMAIN checkpoints : checkpoints[c].state = "stored" => log.latest > c

(* At the end of the job no output waits, and no record is under way.                                                     *)
FinishedIsCommitted == log.finished => log.shelf[log.latest].prepared \subseteq committed /\ log.shelf[log.latest].underWay = 0
=============================================================================
