//! What a port with a contract bought and got in one minute.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::{Explanation, Limit};

/// Field of a line that stands for the labels of the port's line before.
const SAME_LABELS: &str = "=";

/// Part of its purchase in thousandths from which a port got what it bought.
const ENOUGH_PERMILLE: u64 = 990;
/// Part of the time in thousandths from which other programs on a core count as a disturbance.
const DISTURBED_PERMILLE: u64 = 20;

/// Unit of a purchased rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bits per second with FCS.
    Bits,
    /// Frames per second.
    Packets,
}

/// The reason why a port got what it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The port got what it bought.
    Kept,
    /// The VM offered less than it bought, and nothing limited it.
    LessOffered,
    /// The VM's traffic differed from the traffic that its contract declares.
    OutsideProfile,
    /// A lower limit of the port or of its tenant (`police`, `max_rate`, `shape.send`, `send`).
    OwnLimit,
    /// The port had no driver or no link.
    Down,
    /// A receiver, or a limit on received frames.
    Receiver,
    /// A link was full.
    Link,
    /// The port used all cycles that its contract is worth: the cost model is wrong.
    Model,
    /// Other ports used the core.
    Neighbours,
    /// The core had no more cycles.
    Core,
    /// Other programs had the core.
    HostDisturbed,
}

impl Cause {
    /// All causes, in the order of declaration.
    pub const ALL: [Self; 11] = [
        Self::Kept,
        Self::LessOffered,
        Self::OutsideProfile,
        Self::OwnLimit,
        Self::Down,
        Self::Receiver,
        Self::Link,
        Self::Model,
        Self::Neighbours,
        Self::Core,
        Self::HostDisturbed,
    ];

    /// Returns the name in files and listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::LessOffered => "less-offered",
            Self::OutsideProfile => "outside-profile",
            Self::OwnLimit => "own-limit",
            Self::Down => "down",
            Self::Receiver => "receiver",
            Self::Link => "link",
            Self::Model => "model",
            Self::Neighbours => "neighbours",
            Self::Core => "core",
            Self::HostDisturbed => "host-disturbed",
        }
    }

    /// Whether the minute counts as out of contract.
    #[must_use]
    pub const fn is_out(self) -> bool {
        !matches!(self, Self::Kept | Self::LessOffered)
    }

    /// Whether the VM is responsible, not the operator of the host.
    #[must_use]
    pub const fn is_the_vms(self) -> bool {
        matches!(self, Self::OutsideProfile | Self::OwnLimit | Self::Down | Self::Receiver)
    }

    /// Returns the cause for a port with the explanation `answer`.
    #[must_use]
    pub fn of(answer: &Explanation) -> Self {
        if answer.got_permille.unwrap_or(0) >= ENOUGH_PERMILLE {
            return Self::Kept;
        }
        let disturbed = answer.stolen_permille >= DISTURBED_PERMILLE;
        let limit = answer.found();
        let by_cycles = matches!(limit, Limit::Entitlement | Limit::Neighbours | Limit::Core);
        match limit {
            Limit::Nothing => Self::LessOffered,
            _ if by_cycles && answer.inside_profile == Some(false) => Self::OutsideProfile,
            _ if by_cycles && disturbed => Self::HostDisturbed,
            Limit::Attachment => Self::Down,
            Limit::OwnRate => Self::OwnLimit,
            Limit::Link(_) => Self::Link,
            Limit::Destination(_) => Self::Receiver,
            Limit::Entitlement => Self::Model,
            Limit::Neighbours => Self::Neighbours,
            Limit::Core => Self::Core,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Labels of a port. All minutes with the same labels share them.
pub type PortLabels = Arc<BTreeMap<String, String>>;

/// What a port bought and got in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Minute {
    /// End of the minute, in seconds of Unix time.
    pub at: u64,
    pub port: String,
    pub unit: Unit,
    /// The purchased rate, in the unit `unit`.
    pub bought: u64,
    /// The delivered rate.
    pub got: u64,
    pub cause: Cause,
    /// Latency class; 1 is served first.
    pub class: u8,
    /// Longest wait of a batch in the port's ring, in microseconds.
    pub wait_max_us: u64,
    /// Upper bound on the wait by the port's class, in microseconds; `None` if there is none.
    pub bound_us: Option<u64>,
    /// Labels of the port in this minute.
    pub labels: PortLabels,
}

impl Minute {
    /// Writes the minute as a line with its values in the order of declaration, separated by tabs.
    /// `-` means that there is no bound. Each label follows as `KEY=VALUE`. If the port's line
    /// before has the same labels, `=` replaces them.
    pub(super) fn write(&self, f: &mut impl fmt::Write, same_labels: bool) -> fmt::Result {
        let Self { at, port, unit, bought, got, cause, class, wait_max_us, bound_us, labels } =
            self;
        let unit = match unit {
            Unit::Bits => "bit/s",
            Unit::Packets => "pps",
        };
        write!(f, "{at}\t{port}\t{unit}\t{bought}\t{got}\t{cause}\t{class}\t{wait_max_us}\t")?;
        match bound_us {
            Some(bound) => write!(f, "{bound}")?,
            None => f.write_str("-")?,
        }
        if same_labels && !labels.is_empty() {
            return write!(f, "\t{SAME_LABELS}");
        }
        labels.iter().try_for_each(|(key, value)| write!(f, "\t{key}={value}"))
    }

    /// Reads a line. `before` has the labels of each port's line before. A line without labels
    /// belongs to a port without labels.
    ///
    /// # Errors
    /// Returns an error for a line that is not whole or has unknown values.
    pub(super) fn read(
        line: &str,
        before: &BTreeMap<String, PortLabels>,
    ) -> Result<Self, &'static str> {
        const ERROR: &str = "not a line of a report";
        let fields: Vec<&str> = line.split('\t').collect();
        let [at, port, unit, bought, got, cause, class, wait, bound, ref labels @ ..] = fields[..]
        else {
            return Err(ERROR);
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ERROR);
        let label = |text: &&str| -> Result<(String, String), &'static str> {
            let (key, value) = text.split_once('=').ok_or(ERROR)?;
            Ok::<_, &'static str>((key.to_owned(), value.to_owned()))
        };
        let labels = match labels {
            [same] if *same == SAME_LABELS => before.get(port).cloned().unwrap_or_default(),
            labels => Arc::new(labels.iter().map(label).collect::<Result<_, _>>()?),
        };
        Ok(Self {
            labels,
            at: number(at)?,
            port: port.to_owned(),
            unit: match unit {
                "bit/s" => Unit::Bits,
                "pps" => Unit::Packets,
                _ => return Err(ERROR),
            },
            bought: number(bought)?,
            got: number(got)?,
            cause: Cause::ALL.into_iter().find(|known| known.name() == cause).ok_or(ERROR)?,
            class: class.parse().map_err(|_| ERROR)?,
            wait_max_us: number(wait)?,
            bound_us: if bound == "-" { None } else { Some(number(bound)?) },
        })
    }
}

/// The line of a minute with all labels.
impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

impl FromStr for Minute {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        Self::read(line, &BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let minute = Minute {
            at: 1_790_000_000,
            port: "vm1".into(),
            unit: Unit::Packets,
            bought: 600_000,
            got: 450_000,
            cause: Cause::OutsideProfile,
            class: 2,
            wait_max_us: 120,
            bound_us: Some(900),
            labels: Arc::new([("iface-id".to_owned(), "a=b c".to_owned())].into()),
        };
        let bare = Minute { bound_us: None, labels: Arc::default(), ..minute.clone() };
        let mut same = String::new();
        minute.write(&mut same, true).unwrap();
        assert!(same.ends_with("\t900\t="), "{same}");
        let before = [("vm1".to_owned(), Arc::clone(&minute.labels))].into();
        assert_eq!(Minute::read(&same, &before).as_ref(), Ok(&minute));
        assert_eq!(same.parse::<Minute>().unwrap().labels, Arc::default(), "no line before");
        for minute in [minute.clone(), bare, Minute { unit: Unit::Bits, ..minute }] {
            assert_eq!(minute.to_string().parse(), Ok(minute));
        }
        for bad in ["", "1\tvm1\tbit/s\t1\t1\tkept\t1\t1", "x\tvm1\tbit/s\t1\t1\tkept\t1\t1\t-"] {
            assert!(bad.parse::<Minute>().is_err(), "{bad:?}");
        }
        for cause in Cause::ALL {
            assert!(!cause.is_the_vms() || cause.is_out(), "{cause}");
        }
    }

    #[test]
    fn the_cause_follows_the_explanation() {
        let of = |limit: &str, got, inside, stolen| {
            Cause::of(&Explanation {
                limit: limit.into(),
                got_permille: Some(got),
                inside_profile: Some(inside),
                stolen_permille: stolen,
                ..Explanation::default()
            })
        };
        assert_eq!(of("neighbours", 995, false, 500), Cause::Kept);
        assert_eq!(of("nothing", 500, true, 0), Cause::LessOffered);
        assert_eq!(of("entitlement", 500, true, 0), Cause::Model);
        assert_eq!(of("entitlement", 500, false, 500), Cause::OutsideProfile);
        assert_eq!(of("core", 500, true, 20), Cause::HostDisturbed);
        assert_eq!(of("core", 500, true, 19), Cause::Core);
        assert_eq!(of("neighbours", 500, true, 0), Cause::Neighbours);
        assert_eq!(of("link", 500, false, 500), Cause::Link);
        assert_eq!(of("own-rate", 500, true, 0), Cause::OwnLimit);
        assert_eq!(of("destination", 500, true, 0), Cause::Receiver);
        assert_eq!(of("attachment", 0, true, 0), Cause::Down);
    }
}
