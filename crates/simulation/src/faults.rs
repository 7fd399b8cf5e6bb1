//! What goes wrong: on the way to the API server, with the operators' processes and clocks, with the API server and the nodes.

mod draw;
mod way;

use std::fmt;
use std::time::Duration;

use crate::kinds::Kind;
use crate::schedule::Seconds;
use crate::server::{Break, Verb};

pub use draw::draw;
pub use way::{WINDOW, Way};

/// Something that goes wrong at its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// For a while, so many of a hundred requests have this trouble.
    Rough {
        whose: Whose,
        trouble: Trouble,
        percent: u32,
        lasts: Duration,
    },
    /// The next request that fits has this trouble.
    Next {
        whose: Whose,
        verb: Verb,
        kind: Kind,
        trouble: Trouble,
    },
    /// For a while, events come late, and some of them twice.
    Lag {
        whose: Whose,
        late: Duration,
        repeated: u32,
        lasts: Duration,
    },
    BreakWatches {
        whose: Whose,
        how: Break,
    },
    StallWatches {
        whose: Whose,
        lasts: Duration,
    },
    /// The process gets no time from its machine.
    Freeze {
        whose: Whose,
        lasts: Duration,
    },
    /// The process dies, and another is started after a while.
    Kill {
        whose: Whose,
        back_after: Duration,
    },
    /// The next write that fits is the last thing that the process does.
    KillAt {
        whose: Whose,
        verb: Verb,
        kind: Kind,
        is_done: bool,
        back_after: Duration,
    },
    /// The clock of its machine is set.
    Jump {
        whose: Whose,
        milliseconds: i64,
    },
    /// The API server answers nobody.
    Away {
        lasts: Duration,
    },
    /// The API server forgets what happened so far.
    Compact,
    /// A node goes, with the pods on it.
    NodeLost {
        lasts: Duration,
    },
    /// New pods find no place.
    NoRoom {
        lasts: Duration,
    },
}

/// Which operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Whoever holds the lease at that time.
    Leader,
    Operator(usize),
    All,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    Slow(Duration),
    /// 409, without a cause.
    Conflict,
    TooMany,
    /// 500; whether it was done all the same.
    Internal {
        is_done: bool,
    },
    /// The connection breaks; whether it was done all the same.
    Broken {
        is_done: bool,
    },
    /// No answer for so long; whether it was done all the same.
    TimeOut {
        is_done: bool,
        after: Duration,
    },
}

impl Fault {
    /// What it is, in one word, for statistics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rough { trouble, .. } | Self::Next { trouble, .. } => trouble.name(),
            Self::Lag { .. } => "late and repeated events",
            Self::BreakWatches { .. } => "broken watches",
            Self::StallWatches { .. } => "stalled watches",
            Self::Freeze { .. } => "freeze",
            Self::Kill { .. } => "kill",
            Self::KillAt { .. } => "kill at a write",
            Self::Jump { .. } => "clock",
            Self::Away { .. } => "API server away",
            Self::Compact => "compaction",
            Self::NodeLost { .. } => "node lost",
            Self::NoRoom { .. } => "no room",
        }
    }

    /// What happens, as a sentence without its end.
    pub fn tell(&self) -> String {
        match self {
            Self::Rough { whose, trouble, percent, lasts } => {
                format!("for {}, {percent} % of the requests of {whose} {}", Seconds(*lasts), trouble.tell())
            }
            Self::Next { whose, verb, kind, trouble } => {
                format!("the next {verb:?} of a {} by {whose} {}", kind.kind(), trouble.tell_one())
            }
            Self::Lag { whose, late, repeated, lasts } => format!(
                "for {}, events reach {whose} up to {} late, and {repeated} % of them twice",
                Seconds(*lasts),
                Seconds(*late)
            ),
            Self::BreakWatches { whose, how } => format!("the watches of {whose} end ({how:?})"),
            Self::StallWatches { whose, lasts } => {
                format!("the watches of {whose} deliver nothing for {}", Seconds(*lasts))
            }
            Self::Freeze { whose, lasts } => format!("{whose} freezes for {}", Seconds(*lasts)),
            Self::Kill { whose, back_after } => format!("{whose} dies, and is back after {}", Seconds(*back_after)),
            Self::KillAt { whose, verb, kind, is_done, back_after } => format!(
                "{whose} dies {} its next {verb:?} of a {}, and is back after {}",
                if *is_done { "right after" } else { "before" },
                kind.kind(),
                Seconds(*back_after)
            ),
            Self::Jump { whose, milliseconds } => format!("the clock of {whose} jumps by {milliseconds} ms"),
            Self::Away { lasts } => format!("the API server is away for {}", Seconds(*lasts)),
            Self::Compact => "the API server forgets its history".to_owned(),
            Self::NodeLost { lasts } => format!("a node is lost for {}", Seconds(*lasts)),
            Self::NoRoom { lasts } => format!("there is no room for new pods for {}", Seconds(*lasts)),
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("the leader"),
            Self::Operator(index) => write!(f, "operator {index}"),
            Self::All => f.write_str("all operators"),
        }
    }
}

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Self::Slow(_) => "slow requests",
            Self::Conflict => "409",
            Self::TooMany => "429",
            Self::Internal { is_done: false } => "500 before the effect",
            Self::Internal { is_done: true } => "500 after the effect",
            Self::Broken { is_done: false } => "broken before the effect",
            Self::Broken { is_done: true } => "broken after the effect",
            Self::TimeOut { is_done: false, .. } => "time-out before the effect",
            Self::TimeOut { is_done: true, .. } => "time-out after the effect",
        }
    }

    /// For many.
    fn tell(self) -> String {
        match self {
            Self::Slow(by) => format!("take {}", Seconds(by)),
            other => format!("end with {}", other.name()),
        }
    }

    fn tell_one(self) -> String {
        match self {
            Self::Slow(by) => format!("takes {}", Seconds(by)),
            other => format!("ends with {}", other.name()),
        }
    }
}
