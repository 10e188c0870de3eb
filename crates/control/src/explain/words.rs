//! The answer in words: what holds it, with numbers, and what would help.

use penstock_units::{BitsPerSecond, CyclesPerSecond};

use super::{DropReason, Question, permille};
use crate::api::{Explanation, Limit};

/// `63.4 %`.
fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// `201.4 M`: three decimals at most of millions or billions, as nobody reads more.
fn amount(value: u64) -> String {
    match value {
        0..10_000 => value.to_string(),
        10_000..1_000_000 => format!("{}.{} k", value / 1_000, value % 1_000 / 100),
        1_000_000..10_000_000_000 => {
            format!("{}.{} M", value / 1_000_000, value % 1_000_000 / 100_000)
        }
        _ => format!("{}.{} G", value / 1_000_000_000, value % 1_000_000_000 / 100_000_000),
    }
}

fn cycles(value: u64) -> String {
    format!("{} cycles/s", amount(value))
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
            // Its cycles were reckoned for what it declared. What it sends instead comes first.
            Some(breach) if matches!(limit, Limit::Entitlement | Limit::Neighbours) => (
                format!(
                    "its own traffic: it sends outside its contract's profile ({breach}), and has \
                     cycles for what it declared: {}",
                    why.split_once(": ").map_or(why.as_str(), |(_, rest)| rest)
                ),
                "have the VM send what its `contract` declares, or sell it a contract for what it \
                 sends",
            ),
            _ => (why, remedy),
        };
        answer.why = why;
        answer.remedy = remedy.to_owned();
    }

    fn attachment(&self) -> (String, &'static str) {
        if self.growth.workers.get(self.worker).is_some_and(|worker| worker.stalled) {
            let why = format!("worker {} is stalled: it gives no heartbeat", self.worker);
            return (why, "see the daemon's log; restart it");
        }
        let error = &self.status.error;
        let more = if error.is_empty() { String::new() } else { format!(" ({error})") };
        let why = format!("the port is {}{more}: no frame can pass", self.status.state);
        let remedy = match self.status.state.as_str() {
            "connected" => {
                "resume the VM if it is suspended, else see to the virtio-net driver in it; \
                 penstock port show"
            }
            "down" => "set the interface up: ip link set dev NAME up",
            "error" => "correct what the error names; penstock port show",
            _ => "start the VM or see to its network device; penstock port show",
        };
        (why, remedy)
    }

    fn own_rate(&self) -> (String, &'static str) {
        let together = self.drops(&[DropReason::SendLimit]);
        if 2 * together > self.drops(&super::OWN) {
            let why = format!(
                "its tenant's rate: {} of its frames were above what the tenant may send over the \
                 network",
                percent(together)
            );
            return (why, "raise `send` of the tenant; in a fabric, buy more or wait for a queue");
        }
        let share = percent(self.drops(&[DropReason::Policed]));
        let why = format!(
            "its own rate: policy {} dropped {share} of its frames as above `police`",
            self.port.policy.name()
        );
        (why, "raise `police` (penstock port set), or have the VM send less")
    }

    fn of_link(&self, port: &str) -> (String, &'static str) {
        if self.port.reading.held_back > 0 && port.is_empty() {
            let why = format!(
                "its part of a shared output: it was not polled {} times because too much of it \
                 waits there",
                self.port.reading.held_back
            );
            return (
                why,
                "give its tenant more `uplink_weight`, it more `uplink_share`, or the output more \
                 `link`",
            );
        }
        if let Some((queue, weights)) = self.full_queue(port) {
            let why = format!(
                "queue {} of {port}, which has weight {} of {weights}: it was full for {} of the \
                 port's frames",
                queue.queue,
                queue.weight,
                percent(self.drops(&super::FULL))
            );
            return (
                why,
                "give the queue more weight (`wfq`), its tenant a queue of its own (`dscp`), or \
                 the output more `link`",
            );
        }
        let link = self.growth.links.iter().find(|link| link.port == port);
        let Some(link) = link else {
            return ("a link that was full: it is no longer watched".to_owned(), "ask again");
        };
        let capacity = BitsPerSecond(link.capacity_bps);
        let mut why = format!("the link of {port}: it sends {} of {capacity}", {
            percent(link.sent_permille)
        });
        let part = link.parts.iter().find(|part| part.port == self.port.name);
        let held = self.drops(&[DropReason::LinkLimit]);
        if let Some(part) = part.filter(|_| held > 0) {
            let part = amount(part.bps);
            let held = percent(held);
            why.push_str(&format!(
                "; the port is held to its part, {part} bit/s, and {held} of its frames were above"
            ));
        } else {
            let full = percent(self.drops(&[DropReason::RingFull, DropReason::HandoverFull]));
            why.push_str(&format!("; its ring refused {full} of the port's frames"));
        }
        (why, "sell less of the link, or use a faster one; parts follow `contract` and `police`")
    }

    fn destination(&self, port: &str) -> (String, &'static str) {
        let share = percent(self.drops(&super::FULL));
        let who = if port.is_empty() { "a receiver that left" } else { port };
        let above = self.drops(&[DropReason::ReceiveLimit]);
        let together = self.drops(&[DropReason::TenantLimit]);
        if 2 * (above + together) > self.drops(&super::FULL) {
            let whose = if above >= together { "it" } else { "its tenant" };
            let why = format!(
                "the receiver {who}: {share} of the port's frames were above what {whose} may have"
            );
            return (why, "raise `receive` of the receiver or its tenant, or send it less");
        }
        let why = format!(
            "the receiver {who}: its ring or queue was full for {share} of the port's frames"
        );
        (why, "the receiver is too slow: give it longer rings, more queues or more CPU")
    }

    fn entitlement(&self, answer: &Explanation) -> (String, &'static str) {
        let why = if self.in_debt() {
            format!(
                "its own entitlement: its last batch left a debt of {} cycles, which {} pay off \
                 in {} s; until then it sends nothing",
                amount(self.port.debt),
                cycles(answer.entitled),
                self.port.debt.div_ceil(answer.entitled.max(1))
            )
        } else {
            format!(
                "its own entitlement: it used {} of {} and had frames waiting without cycles for \
                 {} of the time",
                amount(answer.used),
                cycles(answer.entitled),
                percent(answer.throttled_permille)
            )
        };
        let remedy = match answer.policy.as_str() {
            "cycles-strict" => "sell it more `cycles`, or let it have idle ones: cycles-minmax",
            _ => {
                "sell it more `cycles`, or give it more `cycle_weight` among those who share the \
                 rest"
            }
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
            "its neighbours: worker {} is full and others have {} of it{most}",
            self.worker,
            percent(total)
        );
        if self.port.policy.is_metered() {
            let (used, entitled) = (amount(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; it got {used} of the {entitled} that it bought"));
            return (
                why,
                "give it a better `priority`, move it (`worker`), or sell less of the core",
            );
        }
        why.push_str(&self.free(answer));
        (why, "meter the ports: ingress_policy = \"cycles-minmax\" and `cycles` for each")
    }

    /// What a port has that bought nothing, beside some that did.
    fn free(&self, answer: &Explanation) -> String {
        if self.port.policy.is_metered() || answer.entitled == 0 {
            return String::new();
        }
        format!(
            "; it bought nothing: it is sure of {}, has a part by weight of what others leave, \
             and used {}",
            cycles(answer.entitled),
            amount(answer.used)
        )
    }

    fn core(&self, answer: &Explanation) -> (String, &'static str) {
        if answer.stolen_permille >= super::THROTTLED_PERMILLE {
            let why = format!(
                "the core of worker {}: it was given to others for {} of the time",
                self.worker,
                percent(answer.stolen_permille)
            );
            return (why, "keep other programs off it: isolcpus, or another core in `cores`");
        }
        let total = self.growth.per_second(
            self.growth
                .ports
                .iter()
                .map(|port| port.cycles.get(self.worker).copied().unwrap_or(0))
                .sum(),
        );
        let why = format!(
            "the core: worker {} is {} busy, {} of that for this port ({})",
            self.worker,
            percent(answer.busy_permille),
            percent(permille(answer.used, total)),
            cycles(answer.used)
        );
        (why, "give the port another core: more `cores`, `queues`, or `worker`")
    }

    fn nothing(&self, answer: &Explanation) -> (String, &'static str) {
        let rate = CyclesPerSecond(answer.sends_pps);
        let mut why = format!(
            "nothing here: it sends {rate} frames/s, {} bit/s, and nothing waits",
            amount(answer.sends_bps)
        );
        why.push_str(&self.free(answer));
        if self.port.policy.is_metered() && answer.entitled > 0 {
            let (used, entitled) = (amount(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; it uses {used} of {entitled}"));
        }
        (why, "look inside the VM or at the far end: its CPU, its windows, its application")
    }
}
