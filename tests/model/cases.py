# SPDX-License-Identifier: Apache-2.0
"""The searches of run.py: each must hold, or must fail by an assertion.

`states` is what a search that holds has stored; much fewer mean that the model does less than it did.
"""
import typing


class Case(typing.NamedTuple):
    """One search; options are the macros of its model."""

    name: str
    model: str
    options: str
    size: str  # small; with --all also late, which is built as fast, and large
    holds: bool
    states: int
    note: str


def _holds(model, name, options, states, note):
    return Case(f"{model}-{name}", model, options, "small", True, states, note)


def _large(model, name, options, states, note):
    return Case(f"{model}-{name}", model, options, "large", True, states, note)


def _fails(model, name, options, note):
    return Case(f"{model}-{name}", model, options, "small", False, 0, note)


def _late(model, name, options, note, size="late"):
    return Case(f"{model}-{name}", model, options, size, False, 0, note)


def _pairs():
    """Each Dekker pair as prescribed, and with each of its four accesses weakened."""
    states = {1: 62, 2: 63, 3: 143, 4: 49, 5: 62, 6: 60, 7: 63}
    weaker = {"WP": "a plain store on the left side", "WQ": "a plain store on the right side",
              "LP": "the left side's load overtakes", "LQ": "the right side's load overtakes"}
    for pair in range(1, 8):
        yield _holds("dekker", f"{pair}", f"-DPAIR={pair}", states[pair], "as prescribed")
        for macro, what in weaker.items():
            options = f"-DPAIR={pair} -D{macro}"
            if (pair, macro) == (6, "WQ"):
                continue  # that side only reads before its swap
            if (pair, macro) in ENOUGH:
                yield _holds("dekker", f"{pair}-{macro}", options, ENOUGH[pair, macro], what + ": still enough")
            else:
                yield _fails("dekker", f"{pair}-{macro}", options, what)


# Where a plain store is enough: the seal, before an audit that only reads and before overflow is swapped.
ENOUGH = {(3, "WQ"): 153, (6, "WP"): 66}

ONE = "-DNS=1 -DNP=1 "  # one slot that is used again and again, one producer
FORK = "-DFORK -DNI=2 -DNS=1 -DNM=1 "
BARE = "-DNR=1 -DNK=0 -DLEFT=1 "  # one reader, tickets alone
TWO_RINGS = "-DNK=1 -DN0=1 -DN1=1 "
RETIRED = "-DNG=2 -DNR=2 -DNK=0 -DLEFT=2 -DNF=0 -DRETIRE "  # two readers, who may end the ticket
PASSED = "-DNG=1 -DNR=2 -DNK=0 -DLEFT=1 -DNF=0 -DPASS "  # two readers, one reading, which may be passed on
ANEW = "-DNO=2 -DNQ=2 -DMAXT=1 "  # the first caller leaves with a call that is held, the next one has its number
ADOPT = "-DMAXR=1 -DMEND -DHOSTILE -DP0=6"
WALK_DEATH = "-DN0=2 -DMAXC=1 -DWHO=4 -DNOAUDIT "
LAPS = "-DLM=8 -DP0=14 "  # laps wrap from 7 to 0 after two messages

CASES = [
    # Slots, words, cells, death at each step.
    _holds("deliver", "one", ONE + "-DNM=1 -DNK=1 -DMAXC=1", 22569, "one message, one death anywhere"),
    _holds("deliver", "reuse", ONE + "-DNM=2 -DNK=1 -DKT=2 -DMAXC=1", 62385, "a slot used again, one death"),
    _holds("deliver", "two-consumers", ONE + "-DNM=1 -DNK=2 -DMAXC=1", 1125556,
           "two consumers at one message, one death"),
    _holds("deliver", "nack", ONE + "-DNM=1 -DNK=1 -DKT=2 -DNACKS=1 -DMAXC=1", 54318, "a nack, one death"),
    _holds("deliver", "restart", ONE + "-DNM=1 -DNK=1 -DMAXC=1 -DMAXR=1", 113952,
           "the sidecar is restarted at any step, one death"),
    _holds("deliver", "quiet", ONE + "-DNM=2 -DNK=2 -DMAXC=0 -DNOAUDIT", 25221, "no death: no audit is needed"),
    _holds("deliver", "expire", ONE + "-DNM=2 -DNK=1 -DKT=2 -DMAXC=0 -DEXPIRE=1", 22614, "expiry beside a consumer"),
    _holds("deliver", "drop-order", "-DORDER -DNM=4 -DNK=1 -DMAXC=0 -DDROP=2", 65228, "drop-oldest drops the oldest"),
    _holds("deliver", "drop-death", ONE + "-DNM=2 -DNK=1 -DMAXC=1 -DDROP=1", 267819, "drop-oldest, one death"),
    _holds("deliver", "full", "-DNC=1 -DNM=2 -DNK=1 -DKT=2 -DMAXC=0", 92568, "an inbox of one cell: overflow"),
    _holds("deliver", "forward", ONE + "-DFWD -DNI=2 -DNM=1 -DNK=2 -DMAXC=0 -DRUNG", 402875,
           "forward in place beside an audit"),
    _holds("deliver", "fork", FORK + "-DNK=1 -DKT=2 -DMAXC=0 -DRUNG", 241940, "forward on two routes beside an audit"),
    _fails("deliver", "late-words", ONE + "-DNM=1 -DNK=1 -DLATEWORDS",
           "words queued after the seal: a message is lost"),
    _fails("deliver", "no-destination", ONE + "-DNI=2 -DNM=2 -DNK=2 -DMAXC=0 -DEXPIRE=1 -DNODEST",
           "taken by the wrong stage"),
    _fails("deliver", "no-second-look", ONE + "-DNM=2 -DNK=2 -DMAXC=1 -DNORECHK", "a message is lost"),
    _fails("deliver", "no-state", ONE + "-DNM=2 -DNK=2 -DMAXC=1 -DNOSTATE", "an unsealed body is read"),
    _fails("deliver", "downwards", FORK + "-DNK=1 -DKT=2 -DMAXC=0 -DRUNG -DDESC", "a forwarded slot is freed"),
    _fails("deliver", "one-bit", ONE + "-DNM=3 -DNK=2 -DKT=2 -DMAXC=0 -DGM=2", "a generation of one bit"),
    _fails("deliver", "drop-blind", ONE + "-DNM=2 -DNK=1 -DMAXC=0 -DDROP=1 -DDROPBLIND",
           "a dropped word is not compared"),
    _fails("deliver", "drop-cell", "-DORDER -DNM=4 -DNK=1 -DMAXC=0 -DDROP=2 -DDROPKEEP",
           "its cell stays: the newest is dropped"),
    _fails("deliver", "exchange", "-DNC=1 -DNM=2 -DNK=1 -DKT=2 -DMAXC=0 -DEXCHANGE",
           "overflow cleared before the walk"),
    # Cells and hints: laps that wrap, hints set to nonsense.
    _holds("hints", "wrap-one", "-DNP=1 -DNM=3 -DNC=1 -DLM=8 -DP0=7", 126459, "one cell, laps wrap"),
    _holds("hints", "wrap", LAPS + "-DNP=1 -DNM=3 -DNK=2", 1208606, "two cells, two consumers, laps wrap"),
    _holds("hints", "double", LAPS + "-DNP=1 -DNM=2 -DDOUBLE=1", 238550, "a word with two cells"),
    _holds("hints", "stale", LAPS + "-DNP=1 -DNM=3 -DEXPIRE=1 -DNACKS=1", 625880, "stale cells, a nack"),
    _holds("hints", "hostile", "-DNP=1 -DNM=2 -DHOSTILE=1 -DP0=6", 3427795,
           "head or tail set to nonsense beside a producer and a consumer"),
    _fails("hints", "tail-far", LAPS + "-DTAILFAR", "the tail is helped a lap too far"),
    _fails("hints", "head-far", "-DHEADFAR -DDROP=2", "the head is helped past what was not taken"),
    _fails("hints", "any-empty", LAPS + "-DNOLAP", "a producer fills any empty cell"),
    _fails("hints", "unsigned", LAPS + "-DUNSIGNED", "laps compared as plain numbers"),
    _fails("hints", "two-bits", "-DLM=4", "laps of two bits: who sleeps two laps is misled"),
    _fails("hints", "one-pass", "-DNK=2 -DNP=1 -DNM=3 -DNC=1 -DPASSES=1", "who is behind gives up: INTERNAL"),
    _fails("hints", "no-mend", "-DHOSTILE=1 -DP0=6 -DNP=1 -DNOMEND", "adopted without a look at the hints"),
    _fails("hints", "cells-left", "-DHOSTILE=1 -DP0=6 -DNP=1 -DNOCELLS", "cells that no head comes by stay"),
    _fails("hints", "two-cells", "-DHOSTILE=1 -DP0=6 -DNP=1 -DOLDLOOK",
           "only the cells at head and tail are looked at"),
    # Sleepers, overflow, several rings.
    _holds("sleep", "one", "-DNK=1 -DN0=2", 13724, "two messages, an inbox of one cell"),
    _holds("sleep", "producer-dies", "-DNK=1 -DN0=1 -DMAXC=1 -DWHO=2", 28754, "between seal, cell and wake"),
    _holds("sleep", "rings", TWO_RINGS, 230777, "overflow of two rings, both mapped"),
    _holds("sleep", "unmapped", TWO_RINGS + "-DMAP0=1 -DLATER", 222118, "the second ring is handed over at last"),
    _holds("sleep", "own-unmapped", TWO_RINGS + "-DMAP0=2", 184133, "the first ring is never handed over"),
    _holds("sleep", "turns", "-DNK=1 -DN0=0 -DN1=1 -DN2=1 -DMAP0=1 -DOPENS=2 -DNC=2", 482774,
           "of two unmapped rings one cannot be had"),
    _holds("sleep", "expire", "-DNK=1 -DN0=2 -DBELL -DEXPIRE=1", 362301, "expiry, and an audit when the bell rang"),
    _holds("sleep", "rings-three", "-DSERIAL -DNK=1 -DN0=1 -DN1=1 -DN2=1 -DMAP0=1 -DOPENS=2", 71452,
           "overflow of three rings, one cannot be had"),
    _fails("sleep", "clear-unjudged", TWO_RINGS + "-DMAP0=1 -DLATER -DCLEARUNJUDGED",
           "a cell of an unmapped ring is cleared"),
    _fails("sleep", "clear-all", TWO_RINGS + "-DMAP0=1 -DLATER -DCLEARALL",
           "overflow cleared though a ring is unmapped"),
    _fails("sleep", "empty-only", TWO_RINGS + "-DMAP0=2 -DEMPTYONLY", "no walk behind cells of unmapped rings"),
    _fails("sleep", "last-ring", "-DNK=1 -DN0=0 -DN1=1 -DN2=1 -DMAP0=1 -DOPENS=2 -DNC=2 -DLASTRING",
           "a ring that cannot be had hides another"),
    _fails("sleep", "forget-set", "-DNK=1 -DN0=4 -DFORGETSET", "overflow that is set is not set again"),
    _fails("sleep", "exchange", WALK_DEATH + "-DEXCHANGE", "a death in the walk takes the flag along"),
    _fails("sleep", "no-audit", "-DN0=1 -DNK=1 -DMAXC=1 -DWHO=2 -DNOAUDIT", "a producer dies before its push"),
    _fails("sleep", "no-sweep-wake", "-DN0=1 -DNK=1 -DMAXC=1 -DWHO=2 -DNOSWEEPWAKE", "a producer dies before its wake"),
    _fails("sleep", "wake-one", "-DN0=2 -DHOG -DWAKEONE", "the one that is woken is busy for ever"),
    # Pods that are gone; rings that meet.
    _holds("gone", "one", "-DNM=1 -DNS=1 -DNACKS=1", 39646, "the pod goes away at any step"),
    _holds("gone", "death", "-DNM=1 -DNS=1 -DNACKS=1 -DMAXC=1", 261575, "and the only consumer dies"),
    _fails("gone", "only-cells", "-DNM=1 -DNS=1 -DNACKS=1 -DONLYCELLS", "queued words are forgotten"),
    _fails("gone", "one-tick", "-DNM=1 -DNS=1 -DNK=2 -DMAXC=1 -DNACKS=1 -DTICKS=0 -DONETICK",
           "a message that lost its cell later waits for ever"),
    _holds("peers", "restart", "-DMAXC=0 -DMAXR=1 -DONLYA -DONEWAY -DKT=1", 3700,
           "forward over two rings, A's sidecar is away"),
    _holds("peers", "late", "-DMAXC=0 -DLATE -DONEWAY -DKT=1", 4343, "the third stage maps A's ring when it asks"),
    _fails("peers", "sweep-all", "-DMAXC=1 -DKT=1 -DSWEEPALL", "a sidecar sweeps another's ring by its own numbers"),
    # One wait word; events.
    _holds("wake", "two", "", 6158, "two sleepers, two wakes"),
    _holds("wake", "death", "-DMAXC=1", 16295, "one death anywhere"),
    _holds("wake", "deaths", "-DNP=2 -DMAXC=2", 1115132, "two producers, two deaths"),
    _holds("wake", "both-bits", "-DNE=1 -DNF=1 -DKINDS=2", 29629, "poller and sleeper wait for different things"),
    _fails("wake", "no-retry", "-DNE=1 -DNF=1 -DKINDS=2 -DNORETRY", "a lost swap is left to whoever won it"),
    _fails("wake", "one", "-DWAKEONE -DHOG", "one is woken, and busy for ever"),
    _fails("wake", "no-sweep-wake", "-DNOSWEEPWAKE -DMAXC=1", "a death wakes nobody"),
    _fails("wake", "look-first", "-DLOOKFIRST", "a sleeper looks before it arms"),
    _fails("wake", "no-compare", "-DNOCOMPARE", "the futex does not compare"),
    _holds("events", "stopped", "-DMAXS=1", 7519, "one of two loops is stopped for ever"),
    _holds("events", "busy", "-DBUSY -DMAXS=1", 8679, "one of two loops is busy for ever"),
    _holds("events", "three", "-DNM=3 -DNE=3 -DMAXS=1", 159093, "three loops, three messages"),
    _holds("events", "tick", "-DLEVEL -DTICK -DMAXS=1", 5384, "an eventfd that is read, and a look each second"),
    _fails("events", "level", "-DLEVEL -DMAXS=1", "the eventfd is read by one that is then stopped"),
    _fails("events", "level-quiet", "-DLEVELQUIET -DMAXS=1", "read and not written again"),
    _fails("events", "level-busy", "-DLEVEL -DBUSY -DMAXS=1", "read by one that is then busy"),
    _fails("events", "arm-first", "-DARMFIRST", "armed before the own edge is taken off"),
    _fails("events", "no-arm", "-DNOARM", "the second look comes without arming"),
    # Allocation.
    _holds("loan", "two", "-DNM=1", 4548, "two producers at two slots"),
    _holds("loan", "death", "-DNM=1 -DMAXC=1", 101046, "one death anywhere"),
    _holds("loan", "again", "-DNP=1 -DNM=3 -DMAXC=1", 94190, "one producer, three loans, one death"),
    _holds("loan", "words", "-DNS=3 -DNP=1 -DNM=3", 5613, "two bitmap words"),
    _holds("loan", "stopped", "-DNS=1 -DNM=1 -DMAXC=1 -DSTOP", 13369,
           "an allocator is stopped for ever between bit and state"),
    _holds("loan", "one-slot", "-DNS=1", 891596, "two producers at one slot, twice each"),
    _fails("loan", "read-first", "-DNM=1 -DREADFIRST", "the state is read before the bit is off"),
    _fails("loan", "look-early", "-DLOOKEARLY", "who frees looks at the bit before the state is FREE"),
    _fails("loan", "no-look", "-DNS=3 -DNP=1 -DNM=3 -DNOLOOK2", "a summary bit is cleared blindly"),
    _fails("loan", "hinted", "-DNS=1 -DNM=1 -DMAXC=1 -DSTOP -DHINTED", "no walk before the sleep"),
    _fails("loan", "arm-late", "-DARMLATE", "the look comes before the arming"),
    _fails("loan", "no-audit", "-DNM=1 -DMAXC=1 -DNOAUDIT", "a dead allocator's bit stays off"),
    # By ticket.
    _holds("tickets", "free", BARE + "-DNF=1 -DMAXC=0", 100483, "a reading, Free, the time's end"),
    _holds("tickets", "filter", BARE + "-DNF=1 -DMAXC=0 -DRGM=1", 130361,
           "the short generation says nothing: state decides"),
    _holds("tickets", "restart", BARE + "-DNF=0 -DMAXC=1 -DMAXR=1", 132358, "a death, and a restart of the sidecar"),
    _holds("tickets", "kept", BARE + "-DKEPT -DNF=1 -DMAXC=0", 224309, "kept messages"),
    _holds("tickets", "routed", "-DNR=1 -DNK=1 -DLEFT=1 -DNF=0 -DMAXC=0 -DROUTED -DREADQ", 206644,
           "by route and by ticket; a reader queues a word"),
    _fails("tickets", "underflow", BARE + "-DNF=1 -DMAXC=0 -DUNDERFLOW", "the count goes below 0"),
    _fails("tickets", "two-steps", BARE + "-DNF=1 -DMAXC=0 -DENDTWO", "bit and count in two steps"),
    _fails("tickets", "free-blind", BARE + "-DNF=1 -DMAXC=0 -DRGM=1 -DFREETEXT", "Free without a look at the state"),
    _fails("tickets", "free-bare", BARE + "-DNF=1 -DMAXC=0 -DRGM=1 -DFREECHK", "Free without a bit on"),
    _fails("tickets", "sweep-quiet", BARE + "-DNF=1 -DMAXC=1 -DSWEEPQUIET", "a dead reader's slot stays sealed"),
    _fails("tickets", "no-time", BARE + "-DNF=0 -DMAXC=1 -DNOTTL", "a dead reader's count keeps the slot for ever"),
    _fails("tickets", "count-undo", BARE + "-DNF=1 -DMAXC=0 -DRGM=1 -DCOUNTUNDO", "an undone reading counts"),
    _fails("tickets", "undo-quiet", BARE + "-DNF=1 -DMAXC=0 -DRGM=1 -DUNDOQUIET", "an undone reading was the last bit"),
    _fails("tickets", "words-first", "-DNR=1 -DNK=1 -DLEFT=1 -DNF=0 -DMAXC=0 -DROUTED -DREADQ -DWORDSCAN",
           "words scanned before readers"),
    _holds("tickets", "passed", PASSED + "-DMAXC=0", 249556, "a reading is passed on beside readings and the time's end"),
    _fails("tickets", "add-plain", PASSED + "-DMAXC=0 -DADDPLAIN", "a reading is added by a load and a store"),
    _holds("tickets", "retired", RETIRED + "-DMAXC=0", 231632, "a reader ends the ticket beside another and the time's end"),
    _fails("tickets", "retire-late", RETIRED + "-DMAXC=0 -DRETIRELATE", "a reader ends the ticket after its reading"),
    _fails("tickets", "add-late", PASSED + "-DMAXC=0 -DADDLATE", "a reading is added after the own one"),
    _holds("retire", "one", "", 102431, "one reader, one who frees, one death"),
    _holds("retire", "deaths", "-DMAXC=2", 285872, "two deaths"),
    _fails("retire", "two-words", "-DTWO -DMAXC=0", "flag and bits change on their own"),
    _fails("retire", "two-words-undo", "-DTWO -DUNDO -DMAXC=0", "and the late reader runs the free check"),
    # Calls.
    _holds("calls", "cancel", "-DMAXT=1 -DPASSER", 18145, "a call that its caller gives up, or not; its slot is used by others"),
    _holds("calls", "stream", "-DNREP=2 -DNB=2 -DMAXT=1", 61300, "two replies through one cell: a callee that waits for room"),
    _holds("calls", "death", "-DMAXC=1", 571577, "one death anywhere"),
    _holds("calls", "anew", ANEW, 330428, "a number that is given anew while a call of it is held"),
    _fails("calls", "seal-first", "-DMAXC=1 -DSEALFIRST", "the ticket is posted after the seal"),
    _fails("calls", "cell-first", "-DCELLFIRST", "no look at the cell after the word: a reply is lost"),
    _fails("calls", "early-look", "-DMAXT=1 -DEARLYLOOK", "the callee looks at the cancel word before the seal"),
    _fails("calls", "blind-cancel", "-DPASSER -DMAXT=1 -DBLINDCANCEL", "a stale cancel ends another message's word"),
    _fails("calls", "no-id", ANEW + "-DNOID", "a reply of an earlier owner's call is accepted"),
    _fails("calls", "blind-empty", ANEW + "-DBLINDEMPTY", "the last reply's cell is emptied whatever it holds"),
    # Store buffers.
    *_pairs(),
    _fails("dekker", "5-EARLY", "-DPAIR=5 -DEARLY", "the wait word is read before the head is moved"),
    _fails("dekker", "6-SETONCE", "-DPAIR=6 -DSETONCE", "who finds overflow set leaves it"),
    _fails("dekker", "7-LOADFIRST", "-DPAIR=7 -DLOADFIRST", "the state is read before the bit is off"),
    _fails("dekker", "7-LOOKFIRST", "-DPAIR=7 -DLOOKFIRST", "the bit is looked at before the slot is free"),
    _fails("dekker", "8-lost", "-DPAIR=8", "a failed swap between store and load is no fence"),
    _holds("dekker", "8-won", "-DPAIR=8 -DWON", 74, "a won one is"),
    _holds("dekker", "9", "-DPAIR=9", 419, "who loses the race for the head need not wake: the winner does"),
    _fails("dekker", "9-QUIET", "-DPAIR=9 -DQUIET", "who moves the head for another does not wake"),
    # For ./run model --all.
    _late("calls", "look-first", "-DLOOKFIRST", "the caller looks before it arms"),
    _late("calls", "one-step", "-DMAXT=1 -DMAXC=1 -DREAP -DONESTEP", "a cell is emptied before its reply is released"),
    _late("calls", "requeue", "-DMAXC=1 -DNK=2 -DREQUEUE", "a request of a dead callee is executed twice"),
    _late("calls", "wake-first", "-DWAKEFIRST", "the wake comes before the seal"),
    _late("calls", "no-sweep-wake", "-DMAXC=1 -DNOSWEEPWAKE", "the sweep wakes nobody"),
    _late("calls", "swept-asleep", "-DNREP=2 -DNB=2 -DNO=2 -DMAXC=1 -DSWEPTASLEEP", "who waits for room in a dead one's box is not woken"),
    _late("calls", "no-look", "-DMAXT=1 -DNOLOOK", "no look at the cancel word"),
    _late("calls", "no-entry", ANEW + "-DNOENTRY", "no look at the caller's entries"),
    _late("calls", "release-first", "-DRELEASEFIRST", "the request is let go before the last reply"),
    _late("calls", "won-only", "-DNO=2 -DMAXT=1 -DOTHERB -DWONONLY", "the box was emptied, and nobody releases the reply"),
    _late("calls", "left-back", "-DMAXT=1 -DMAXC=1 -DREAP -DLEFTBACK", "a callee dies while it takes a reply back"),
    _late("calls", "take-unsealed", "-DMAXT=1 -DTAKEUNSEALED", "a cancel takes a cell whose reply is sealed later"),
    _late("calls", "early-cells", "-DNM=2 -DNQ=2 -DNK=2 -DMAXT=1 -DNOID -DEARLYCELLS", "cells of a cancelled call are used at once"),
    _late("calls", "late-dead", "-DNO=2 -DMAXC=1 -DOTHERB -DLATEDEAD", "ring B is swept before the entry is DEAD"),
    _late("calls", "left-queued", "-DMAXC=2 -DLEFTQUEUED", "a request of the dead waits for ever"),
    _late("calls", "no-state", "-DNOSTATE", "a reply is taken before its seal"),
    _late("calls", "quiet-take", "-DNREP=2 -DNB=2 -DQUIETTAKE", "who takes a reply wakes nobody"),
    _late("calls", "quiet-back", ANEW + "-DNB=2 -DNK=2 -DQUIETBACK", "who takes one back out of another's box wakes nobody"),
    _late("calls", "take-first", ANEW + "-DTAKEFIRST", "the header is read after the cell was emptied"),
    _late("calls", "stray-sleep", "-DMAXC=1 -DSTRAYSLEEP", "who dropped a stray sleeps, and the callee is gone"),
    _late("calls", "quiet-gone", "-DGIVEUP -DQUIETGONE", "a request is let go unanswered, and nobody is woken"),
    _late("calls", "no-nonce", ANEW + "-DMAXC=1 -DOTHERB -DREAP -DTICK=3 -DNONONCE",
          "a callee dies before it takes back what a number given anew holds", "large"),
    _large("calls", "deaths", "-DMAXC=2", 1277952, "two deaths"),
    _large("calls", "restart", "-DMAXR=1 -DMAXC=1", 2350170, "a death, and a restart of a sidecar in its sweep"),
    _large("calls", "cancel-death", "-DMAXT=1 -DMAXC=1 -DREAP", 1251285, "a call given up, one death"),
    _large("calls", "anew-two", "-DNO=2 -DNK=2", 1350338, "a number given anew, two callees"),
    _large("calls", "anew-death", ANEW + "-DMAXC=1 -DOTHERB -DREAP -DTICK=3", 28216766,
           "numbers given anew, another one in ring B, one death"),
    _large("calls", "no-clear", ANEW + "-DNOCLEAR", 301062, "a box that is not emptied costs a look alone: states and ids tell"),
    _large("tickets", "passed-death", PASSED + "-DMAXC=1", 1022023, "who passes its reading on dies"),
    _large("tickets", "retired-death", RETIRED + "-DMAXC=1", 1860956, "who ended the ticket dies before its reading ends"),
    _large("tickets", "passed-free", PASSED.replace("-DNF=0", "-DNF=1") + "-DMAXC=0", 16445067, "a reading passed on, and Free"),
    _large("deliver", "A1", "-DNP=1 -DNM=2 -DNK=2 -DKT=1 -DMAXC=1", 36823030, "two slots, two consumers, one death"),
    _large("deliver", "A2", ONE + "-DNM=2 -DNK=2 -DMAXC=1", 3621041, "a slot used again, two consumers, one death"),
    _large("deliver", "A2b", ONE + "-DNM=2 -DNK=2 -DMAXC=2", 18682366, "two deaths"),
    _large("deliver", "A2c", ONE + "-DNM=2 -DNK=2 -DMAXC=1 -DMAXR=1", 29714522, "one death, one restart"),
    _large("deliver", "A5", ONE + "-DNM=3 -DNK=2 -DKT=2 -DMAXC=0", 552384, "three messages, two takes each"),
    _large("deliver", "A6", ONE + "-DNI=2 -DFANOUT=1 -DNM=2 -DNK=2 -DMAXC=2", 22803783, "two routes, two deaths"),
    _large("deliver", "A8", "-DNP=1 -DNM=2 -DNK=1 -DKT=2 -DMAXC=1 -DEXPIRE=1", 2247018, "expiry, two slots, one death"),
    _large("deliver", "A9", ONE + "-DFWD -DNI=2 -DNM=2 -DNK=2 -DKT=2 -DMAXC=1", 7072958, "forward in place, one death"),
    _large("deliver", "A10", "-DNC=1 -DNM=2 -DNK=1 -DKT=2 -DMAXC=2", 2832941, "an inbox of one cell, two deaths"),
    _large("deliver", "A11", "-DNS=1 -DNP=2 -DNM=1 -DNK=1 -DKT=2 -DMAXC=1", 1248271, "two producers, one death"),
    _large("deliver", "fork-death", FORK + "-DNK=2 -DKT=1 -DMAXC=1", 2073669, "forward on two routes, one death"),
    _large("deliver", "drop-two", "-DNS=1 -DNP=2 -DNM=1 -DNK=1 -DMAXC=1 -DDROP=1 -DEXPIRE=1", 24130567,
           "drop-oldest by two producers, expiry, one death"),
    _large("deliver", "adopt", ONE + "-DNM=1 -DNK=1 -DMAXC=0 " + ADOPT, 2418131, "wrong hints at a restart"),
    _large("hints", "wrap-two", LAPS, 5622682, "two producers, laps wrap"),
    _large("hints", "drop", LAPS + "-DDROP=1 -DNP=1 -DNM=4", 2883058, "cells cleared out of turn"),
    _large("sleep", "two", "", 3881969, "two consumers, two messages"),
    _large("sleep", "walk-death", WALK_DEATH, 4551361, "a consumer dies in the walk: no audit is needed"),
    _large("sleep", "rings-more", "-DNK=1 -DN0=2 -DN1=1", 4496237, "overflow of two rings, three messages"),
    _large("sleep", "rings-two", "-DSERIAL -DN0=1 -DN1=1 -DMAP1=1", 2743341, "two consumers, one has one ring alone"),
    _large("sleep", "rings-death", "-DSERIAL " + TWO_RINGS + "-DMAXC=1 -DWHO=2", 22598655,
           "overflow of two rings, a producer dies"),
    _large("sleep", "consumer-dies", "-DN0=1 -DMAXC=1 -DWHO=1", 3555024, "one of two consumers dies"),
    _large("sleep", "hog", "-DN0=3 -DHOG", 28440051, "one of two consumers is busy for ever"),
    _large("gone", "two", "", 2486778, "two messages, two slots"),
    _large("gone", "two-consumers", "-DNM=1 -DNS=1 -DNK=2 -DMAXC=1", 7850968, "two consumers, one of which dies"),
    _large("gone", "nack-death", "-DNM=1 -DNS=1 -DNK=2 -DMAXC=1 -DNACKS=1", 72838663, "and a nack"),
    _large("peers", "two-ways", "-DMAXC=0", 2226445, "both stages send"),
    _large("peers", "death", "-DONEWAY -DKT=1", 16244441, "one death anywhere"),
    _large("wake", "both-bits-two", "-DNP=2 -DNM=1 -DNE=1 -DNF=1 -DKINDS=2 -DMAXC=1", 616452, "two producers, a death"),
    _large("loan", "four", "", 2976419, "two producers, two slots, two loans each"),
    _large("loan", "two-free", "-DNP=1 -DNM=4 -DNF=2 -DMAXC=1", 11089644, "one producer, two who free, a death"),
    _large("loan", "one-slot-death", "-DNS=1 -DMAXC=1", 20007042, "one slot, a death"),
    _large("tickets", "reader-queues", "-DNF=0 -DNK=1 -DMAXC=1 -DNR=1 -DLEFT=1 -DROUTED -DREADQ", 2015814,
           "a reader queues a word, a consumer, one death"),
    _large("tickets", "all", "-DNF=1 -DNK=1 -DMAXC=0 -DNR=1 -DLEFT=1 -DROUTED", 3941327, "a reader, a consumer, Free"),
    _large("tickets", "three", "-DNG=1 -DNF=0 -DNK=0 -DNR=3 -DLEFT=3 -DMAXC=1", 20169557, "three readers, one death"),
    _large("tickets", "adopt", BARE + "-DRGM=1 -DNF=1 -DMAXC=1 -DMAXR=1", 6768210, "state decides; a death, a restart"),
    _large("tickets", "kept-death", BARE + "-DKEPT -DNF=1 -DKR=2 -DMAXC=1", 7317695, "kept, two readings, a death"),
    _large("retire", "two-readers", "-DNR=2", 6316380, "two readers, a death"),
    _large("retire", "two-free", "-DNF=2", 9497403, "two who free, a death"),
]
