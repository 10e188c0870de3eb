//! Adds up the minutes of each contract.

use std::collections::BTreeMap;

use super::{Cause, Minute, Unit};

/// All minutes of one contract: a port, its purchased rate and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub port: String,
    /// Labels of the port. A port with other labels is another contract.
    pub labels: BTreeMap<String, String>,
    pub unit: Unit,
    /// The purchased rate, in the unit `unit`.
    pub bought: u64,
    pub class: u8,
    /// First and last minute, by their ends in seconds of Unix time.
    pub span: (u64, u64),
    /// Number of minutes by cause.
    pub minutes: BTreeMap<Cause, u64>,
    /// Mean of the delivered rates.
    pub got: u64,
    /// Lowest delivered rate of a minute that was out of contract; `None` if there is none.
    pub least: Option<u64>,
    /// Longest wait of a batch in the port's ring, in microseconds.
    pub wait_max_us: u64,
    /// Number of minutes in which the longest wait exceeded the bound of the port's class.
    pub late: u64,
}

impl Summary {
    /// Adds up `minutes`, by port and contract. A changed contract begins a new summary.
    #[must_use]
    pub fn of(minutes: &[Minute]) -> Vec<Self> {
        let mut all: Vec<(Self, u128)> = Vec::new();
        for minute in minutes {
            let same = |(of, _): &(Self, u128)| {
                let known = (&of.port, &of.labels, of.unit, of.bought, of.class);
                let port = (&minute.port, &*minute.labels);
                known == (port.0, port.1, minute.unit, minute.bought, minute.class)
            };
            let at = all.iter().position(same).unwrap_or_else(|| {
                all.push((Self::begin(minute), 0));
                all.len() - 1
            });
            let (of, sum) = &mut all[at];
            of.add(minute);
            *sum += u128::from(minute.got);
        }
        let mean = |(of, sum): (Self, u128)| {
            let got = u64::try_from(sum / u128::from(of.all().max(1))).unwrap_or(u64::MAX);
            Self { got, ..of }
        };
        let mut all: Vec<Self> = all.into_iter().map(mean).collect();
        all.sort_by(|a, b| (&a.port, a.span).cmp(&(&b.port, b.span)));
        all
    }

    fn begin(minute: &Minute) -> Self {
        Self {
            port: minute.port.clone(),
            labels: BTreeMap::clone(&minute.labels),
            unit: minute.unit,
            bought: minute.bought,
            class: minute.class,
            span: (minute.at, minute.at),
            minutes: BTreeMap::new(),
            got: 0,
            least: None,
            wait_max_us: 0,
            late: 0,
        }
    }

    fn add(&mut self, minute: &Minute) {
        self.span = (self.span.0.min(minute.at), self.span.1.max(minute.at));
        *self.minutes.entry(minute.cause).or_default() += 1;
        if minute.cause.is_out() {
            self.least = Some(self.least.map_or(minute.got, |least| least.min(minute.got)));
        }
        self.wait_max_us = self.wait_max_us.max(minute.wait_max_us);
        self.late += u64::from(minute.bound_us.is_some_and(|bound| minute.wait_max_us > bound));
    }

    /// Number of minutes.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.minutes.values().sum()
    }

    /// Number of minutes out of contract, for which the operator is responsible or the VM.
    #[must_use]
    pub fn out(&self, of_the_vm: bool) -> u64 {
        let counted = |cause: &Cause| cause.is_out() && cause.is_the_vms() == of_the_vm;
        self.minutes.iter().filter(|(cause, _)| counted(cause)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_of_one_contract_add_up_and_a_changed_contract_is_another() {
        let minute = |at, bought, got, cause, wait_max_us| Minute {
            at,
            port: "vm1".into(),
            unit: Unit::Bits,
            bought,
            got,
            cause,
            class: 1,
            wait_max_us,
            bound_us: Some(100),
            labels: Default::default(),
        };
        let minutes = [
            minute(60, 1_000, 1_000, Cause::Kept, 90),
            minute(120, 1_000, 600, Cause::Neighbours, 101),
            minute(180, 1_000, 200, Cause::OutsideProfile, 50),
            minute(240, 2_000, 100, Cause::LessOffered, 50),
        ];
        let all = Summary::of(&minutes);
        let [first, second] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.got, first.least, first.all()), (600, Some(200), 3));
        assert_eq!((first.out(false), first.out(true)), (1, 1));
        assert_eq!((first.wait_max_us, first.late, first.span), (101, 1, (60, 180)));
        assert_eq!((second.bought, second.got, second.least), (2_000, 100, None));
        assert_eq!((second.out(false), second.out(true)), (0, 0));
        assert!(Summary::of(&[]).is_empty());
    }
}
