//! Writes the answer in words: the limit with numbers, and the remedy.

use super::{DropReason, Question, permille};
use crate::api::{Explanation, Limit};

/// Thousandths as text, as in `63.4 %`.
fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// An amount with decimal prefix and unit, rounded down, as in `201.4 Mcycles/s`.
fn amount(value: u64, unit: &str) -> String {
    match value {
        0..10_000 => format!("{value} {unit}"),
        10_000..1_000_000 => format!("{}.{} k{unit}", value / 1_000, value % 1_000 / 100),
        1_000_000..1_000_000_000 => {
            format!("{}.{} M{unit}", value / 1_000_000, value % 1_000_000 / 100_000)
        }
        _ => format!("{}.{:02} G{unit}", value / 1_000_000_000, value % 1_000_000_000 / 10_000_000),
    }
}

fn cycles(value: u64) -> String {
    amount(value, "cycles/s")
}

fn bits(value: u64) -> String {
    amount(value, "bit/s")
}

impl Question<'_> {
    /// Fills in `why` and `remedy`.
    pub(super) fn word(&self, answer: &mut Explanation, limit: &Limit) {
        let (why, remedy) = match limit {
            Limit::Attachment => self.attachment(),
            Limit::OwnRate => self.own_rate(),
            Limit::Link(port) => self.of_link(port),
            Limit::Destination(port) => self.destination(port),
            Limit::Entitlement => self.entitlement(answer),
            Limit::Neighbours => self.neighbours(answer),
            Limit::Core => self.core(answer),
            Limit::Nothing => self.nothing(answer),
        };
        let (why, remedy) = match &self.port.breach {
            // The port's cycles were computed for its declared traffic. Other traffic is the first
            // reason.
            Some(breach) if matches!(limit, Limit::Entitlement | Limit::Neighbours) => (
                format!(
                    "it sends traffic outside its contract's profile ({breach}), and its cycles \
                     are reckoned for the declared traffic; {why}"
                ),
                "make the VM send the traffic that its `contract` declares, or sell it a contract \
                 for the traffic that it sends",
            ),
            _ => (why, remedy),
        };
        answer.why = why;
        answer.remedy = remedy.to_owned();
    }

    fn attachment(&self) -> (String, &'static str) {
        if self.growth.workers.get(self.worker).is_some_and(|worker| worker.stalled) {
            let why = format!("worker {} is stalled and gives no heartbeat", self.worker);
            return (why, "see the daemon's log; restart it");
        }
        let error = &self.status.error;
        let more = if error.is_empty() { String::new() } else { format!(" ({error})") };
        let why = format!("the port is {}{more}, so no frame can pass", self.status.state);
        let remedy = match self.status.state.as_str() {
            "connected" => {
                "resume the VM if it is suspended, else check its virtio-net driver; see `penstock \
                 port show`"
            }
            "down" => "set the interface up: `ip link set dev NAME up`",
            "error" => "correct the error; see `penstock port show`",
            _ => "start the VM or check its network device; see `penstock port show`",
        };
        (why, remedy)
    }

    fn own_rate(&self) -> (String, &'static str) {
        let together = self.drops(&[DropReason::SendLimit]);
        if 2 * together > self.drops(&super::OWN) {
            let why =
                format!("the tenant's `send` rate dropped {} of its frames", percent(together));
            return (
                why,
                "raise `send` of the tenant; in a fabric, raise its guarantee or wait for a queue",
            );
        }
        let share = percent(self.drops(&[DropReason::Policed]));
        let why =
            format!("`police` (policy {}) dropped {share} of its frames", self.port.policy.name());
        (why, "raise `police` with `penstock port set`, or make the VM send less")
    }

    fn of_link(&self, port: &str) -> (String, &'static str) {
        if self.port.reading.held_back > 0 && port.is_empty() {
            let why = format!(
                "its backlog at a shared output is at the limit; it was not polled {} times",
                self.port.reading.held_back
            );
            return (
                why,
                "raise `uplink_weight` of its tenant, its `uplink_share`, or `link` of the output",
            );
        }
        if let Some((queue, weights)) = self.full_queue(port) {
            let why = format!(
                "queue {} of {port} (weight {} of {weights}) was full for {} of the port's \
                 frames",
                queue.queue,
                queue.weight,
                percent(self.drops(&super::FULL))
            );
            return (
                why,
                "raise the queue's weight in `wfq`, give its tenant its own queue (`dscp`), or \
                 raise `link` of the output",
            );
        }
        let link = self.growth.links.iter().find(|link| link.port == port);
        let Some(link) = link else {
            return ("a link was full, and is no longer watched".to_owned(), "ask again");
        };
        let (sent, capacity) = (percent(link.sent_permille), bits(link.capacity_bps));
        let mut why = format!("the link of {port} sends {sent} of {capacity}");
        let part = link.parts.iter().find(|part| part.port == self.port.name);
        let held = self.drops(&[DropReason::LinkLimit]);
        if let Some(part) = part.filter(|_| held > 0) {
            let part = bits(part.bps);
            let held = percent(held);
            why.push_str(&format!(
                "; the port is limited to its part of {part}, which dropped {held} of its frames"
            ));
        } else {
            let full = percent(self.drops(&[DropReason::RingFull, DropReason::HandoverFull]));
            why.push_str(&format!("; its ring was full for {full} of the port's frames"));
        }
        (why, "sell less of the link, or use a faster link; parts follow `contract` and `police`")
    }

    fn destination(&self, port: &str) -> (String, &'static str) {
        let share = percent(self.drops(&super::FULL));
        let receiver = if port.is_empty() { "a receiver that left" } else { port };
        let above = self.drops(&[DropReason::ReceiveLimit]);
        let together = self.drops(&[DropReason::TenantLimit]);
        if 2 * (above + together) > self.drops(&super::FULL) {
            let whose = if above >= together { "the port" } else { "the tenant" };
            let why = format!(
                "{receiver} received too much: `receive` of {whose} dropped {share} of the frames"
            );
            return (why, "raise `receive` of the receiver or its tenant, or send it less");
        }
        let why =
            format!("the ring or queue of {receiver} was full for {share} of the port's frames");
        (why, "give the receiver longer rings, more queues or more CPU time")
    }

    fn entitlement(&self, answer: &Explanation) -> (String, &'static str) {
        let why = if self.in_debt() {
            format!(
                "its last batch left a debt of {}; {} pay it off in {} s, and until then the port \
                 sends nothing",
                amount(self.port.debt, "cycles"),
                cycles(answer.entitled),
                self.port.debt.div_ceil(answer.entitled.max(1))
            )
        } else {
            format!(
                "it used {} and is entitled to {}; it had frames but no cycles for {} of the time",
                cycles(answer.used),
                cycles(answer.entitled),
                percent(answer.throttled_permille)
            )
        };
        let remedy = match answer.policy.as_str() {
            "cycles-strict" => {
                "sell it more `cycles`, or let it use spare cycles: `ingress_policy` cycles-minmax"
            }
            _ => "sell it more `cycles`, or raise its `cycle_weight` for spare cycles",
        };
        (why, remedy)
    }

    fn neighbours(&self, answer: &Explanation) -> (String, &'static str) {
        let others = answer.consumers.iter().filter(|consumer| consumer.port != self.port.name);
        let total: u64 = others.clone().map(|consumer| consumer.share_permille).sum();
        let most = others.max_by_key(|consumer| consumer.share_permille);
        let most = most.map_or_else(String::new, |most| {
            format!(", most of all {} with {}", most.port, percent(most.share_permille))
        });
        let mut why = format!(
            "worker {} is full, and other ports use {} of it{most}",
            self.worker,
            percent(total)
        );
        if self.port.policy.is_metered() {
            let (used, entitled) = (cycles(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; it got {used} and is entitled to {entitled}"));
            return (
                why,
                "give it an earlier `priority`, move it to another `worker`, or sell less of the \
                 core",
            );
        }
        why.push_str(&self.free(answer));
        (why, "set `ingress_policy` = \"cycles-minmax\" and `cycles` for each port")
    }

    /// The text for a port without entitlement beside ports with one.
    fn free(&self, answer: &Explanation) -> String {
        if self.port.policy.is_metered() || answer.entitled == 0 {
            return String::new();
        }
        format!(
            "; it purchased no cycles: {} are guaranteed, plus a weighted share of spare cycles, \
             and it used {}",
            cycles(answer.entitled),
            cycles(answer.used)
        )
    }

    fn core(&self, answer: &Explanation) -> (String, &'static str) {
        if answer.stolen_permille >= super::THROTTLED_PERMILLE {
            let why = format!(
                "the core of worker {} ran other programs for {} of the time",
                self.worker,
                percent(answer.stolen_permille)
            );
            return (
                why,
                "keep other programs off the core with isolcpus, or name another core in `cores`",
            );
        }
        let total = self.growth.per_second(
            self.growth
                .ports
                .iter()
                .map(|port| port.cycles.get(self.worker).copied().unwrap_or(0))
                .sum(),
        );
        let why = format!(
            "worker {} is {} busy, {} of that for this port ({})",
            self.worker,
            percent(answer.busy_permille),
            percent(permille(answer.used, total)),
            cycles(answer.used)
        );
        (why, "give the port another core with `cores`, `queues` or `worker`")
    }

    fn nothing(&self, answer: &Explanation) -> (String, &'static str) {
        let (rate, sent) = (amount(answer.sends_pps, "frames/s"), bits(answer.sends_bps));
        let mut why = format!("it sends {rate}, {sent}, and has no backlog");
        why.push_str(&self.free(answer));
        if self.port.policy.is_metered() && answer.entitled > 0 {
            let (used, entitled) = (cycles(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; it uses {used} and is entitled to {entitled}"));
        }
        (why, "look inside the VM or at the far end: CPU, TCP windows, application")
    }
}
