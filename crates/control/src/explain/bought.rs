//! Words the first line of `penstock explain` in what the port bought.

use penstock_qos::cost_model::{Contract, Rate};
use penstock_qos::learner::{Breach, MachineState, PortLearning};
use penstock_units::Nanos;

use super::words::{amount, percent};
use super::{PortGrowth, Question, permille};
use crate::api::{Concerned, Explanation, Limit, bits_of};

/// A port gets what it bought if it gets at least this many thousandths of it.
const ENOUGH_PERMILLE: u64 = 990;
/// Number of concerned ports that an answer lists.
const CONCERNED_MAX: usize = 5;
/// Relative error of the cost model from which an answer names the model as the cause.
const MODEL_ERROR: f64 = 0.02;

/// What a port bought, and what the learner knows about the port.
#[derive(Clone, Debug)]
pub struct Bought {
    rate: Rate,
    pub(super) breach: Option<Breach>,
    /// Time since which the port's traffic violates its profile, or since which the port gets less
    /// than it bought.
    since: Option<Nanos>,
    /// Relative error of the cost model for the port's frames.
    model_error: f64,
}

impl Bought {
    #[must_use]
    pub fn new(contract: &Contract, learned: Option<&PortLearning>) -> Self {
        let breach = learned.and_then(|learned| learned.breach);
        let since = learned.map(|learned| match breach {
            Some(_) => learned.breach_for,
            None => learned.less_for,
        });
        Self {
            rate: contract.rate,
            breach,
            since: since.filter(|since| since.0 > 0),
            model_error: learned.and_then(|learned| learned.model_error).unwrap_or(0.0),
        }
    }

    #[cfg(test)]
    pub(super) fn set_model_error(&mut self, error: f64) {
        self.model_error = error;
    }

    fn text(&self) -> String {
        match self.rate {
            Rate::Bits(rate) => amount(rate.0, "bit/s"),
            Rate::Packets(rate) => amount(rate.0, "pps"),
        }
    }
}

impl Question<'_> {
    /// Writes the first line of an answer about a port with a contract, and what belongs to it.
    pub(super) fn in_what_was_bought(&self, answer: &mut Explanation, limit: &Limit) {
        let Some(bought) = &self.port.bought else { return };
        let got = self.got_permille(self.port, bought);
        let rate = bought.text();
        answer.verdict = match limit {
            _ if (ENOUGH_PERMILLE..=2_000 - ENOUGH_PERMILLE).contains(&got) => {
                format!("gets the {rate} it bought")
            }
            _ if got > 1_000 => format!("gets {} of the {rate} it bought", percent(got)),
            Limit::Nothing => format!(
                "sends {} of the {rate} it bought, and nothing on this host limits it",
                percent(got)
            ),
            limit => format!(
                "gets {} of the {rate} it bought, because {}",
                percent(got),
                because(bought, limit, self.growth.machine)
            ),
        };
        answer.bought = rate;
        answer.got_permille = Some(got);
        if got >= ENOUGH_PERMILLE || *limit == Limit::Nothing {
            return;
        }
        answer.since_ms = bought.since.map(|since| since.0 / 1_000_000);
        if matches!(limit, Limit::Entitlement | Limit::Neighbours | Limit::Core) {
            answer.concerned = self.concerned();
        }
    }

    /// Returns the part of its purchase that a port gets, in thousandths.
    fn got_permille(&self, port: &PortGrowth, bought: &Bought) -> u64 {
        let [frames, bytes] = port.reading.on_wire();
        let (sent, bought) = match bought.rate {
            Rate::Bits(rate) => (bits_of(bytes, frames), rate.0),
            Rate::Packets(rate) => (frames, rate.0),
        };
        let dropped = permille(port.reading.dropped(), port.reading.rx_frames).min(1_000);
        permille(self.growth.per_second(sent), bought) * (1_000 - dropped) / 1_000
    }

    /// Returns the other ports on the same core that get less than they bought.
    fn concerned(&self) -> Vec<Concerned> {
        let on_core = |port: &&PortGrowth| {
            port.name != self.port.name && port.cycles.get(self.worker).is_some_and(|c| *c > 0)
        };
        let concerned = self.growth.ports.iter().filter(on_core).filter_map(|port| {
            let bought = port.bought.as_ref()?;
            let got_permille = self.got_permille(port, bought);
            let wants =
                permille(port.reading.rx_full, port.reading.rx_batches) >= super::FULL_PERMILLE;
            (wants && got_permille < ENOUGH_PERMILLE).then(|| Concerned {
                port: port.name.clone(),
                bought: bought.text(),
                got_permille,
            })
        });
        concerned.take(CONCERNED_MAX).collect()
    }
}

/// Returns the reason why a port gets less than it bought, as the end of a sentence.
fn because(bought: &Bought, limit: &Limit, machine: Option<MachineState>) -> String {
    let by_cycles = matches!(limit, Limit::Entitlement | Limit::Neighbours | Limit::Core);
    match (bought.breach, limit) {
        (Some(Breach::Size { declared, seen }), _) if by_cycles => {
            format!("its frames are {seen:.0} bytes and it was sold {declared:.0}")
        }
        (Some(Breach::Flows { .. }), _) if by_cycles => {
            "it sends many flows and it was sold one".to_owned()
        }
        (_, Limit::Attachment) => "it cannot pass frames".to_owned(),
        (_, Limit::OwnRate) => "another limit of its own is lower".to_owned(),
        (_, Limit::Link(port)) if port.is_empty() => {
            "its share of a shared output is used up".to_owned()
        }
        (_, Limit::Link(port)) => format!("the link of {port} is full"),
        (_, Limit::Destination(port)) if port.is_empty() => "a receiver takes no more".to_owned(),
        (_, Limit::Destination(port)) => format!("the receiver {port} takes no more"),
        (_, Limit::Entitlement) if bought.model_error > MODEL_ERROR => {
            let percent = bought.model_error * 100.0;
            // If the machine changed, the error is not the port's own.
            let all = machine.filter(|machine| machine.error > MODEL_ERROR).map_or_else(
                String::new,
                |machine| {
                    let (error, since) = (machine.error * 100.0, machine.lasts.0 / 1_000_000_000);
                    format!(", and those of all ports {error:.0} % more, for {since} s")
                },
            );
            format!("its frames cost {percent:.0} % more than the cost model says{all}")
        }
        (_, Limit::Entitlement) => "it used all of its cycles".to_owned(),
        (_, Limit::Neighbours) => "other ports use its core".to_owned(),
        (_, Limit::Core | Limit::Nothing) => "its core has no more cycles".to_owned(),
    }
}
