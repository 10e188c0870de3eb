//! Writes the answer of `penstock explain` as text: the limit with numbers, and the remedy.

use super::{DropReason, Question, permille};
use crate::api::{Explanation, Limit};
use crate::config::Egress;

/// Remedies for a VM with frames that wait at a `fair-share` output.
const MORE_OF_OUTPUT: &str =
    "raise `uplink_weight` of the tenant, `uplink_share` of the port, or `link` of the output";

/// Returns thousandths as a percentage in text, such as `63.4 %`.
pub(super) fn percent(permille: u64) -> String {
    format!("{}.{} %", permille / 10, permille % 10)
}

/// Returns an amount as text with decimal prefix and unit, rounded down, such as `201.4 Mcycles/s`.
pub(super) fn amount(value: u64, unit: &str) -> String {
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
    /// Writes the explanation of `limit` into the fields `why` and `remedy` of the answer.
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
        let breach = self.port.bought.as_ref().and_then(|bought| bought.breach);
        let (why, remedy) = match breach {
            // The plan computed the port's cycles for its declared traffic. Other traffic is the
            // first reason.
            Some(breach) if matches!(limit, Limit::Entitlement | Limit::Neighbours) => (
                format!(
                    "the port sends traffic outside its contract's profile ({breach}), and its \
                     cycles are computed for the declared traffic; {why}"
                ),
                "make the VM send the traffic that its `contract` declares, or sell the VM a \
                 contract for its present traffic",
            ),
            _ => (why, remedy),
        };
        answer.why = why;
        answer.remedy = remedy.to_owned();
    }

    fn attachment(&self) -> (String, &'static str) {
        if self.growth.workers.get(self.worker).is_some_and(|worker| worker.stalled) {
            let why = format!("worker {} is stalled and gives no heartbeat", self.worker);
            return (why, "see the daemon's log, then restart the daemon");
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
                format!("the tenant's `send` dropped {} of the port's frames", percent(together));
            return (
                why,
                "raise `send` of the tenant; in a fabric, raise its guarantee or wait for a queue",
            );
        }
        let pairs = self.drops(&[DropReason::PairLimit]);
        if 2 * pairs > self.drops(&super::OWN) {
            let why = format!(
                "the fabric's limits on pairs of VMs dropped {} of the port's frames",
                percent(pairs)
            );
            return (why, "raise the guarantee of the tenant, or wait for a queue");
        }
        let share = self.drops(&[DropReason::Policed]);
        let policed = share >= super::NOTICEABLE_PERMILLE;
        if let Some(rate) = self.port.shaped_bps.filter(|_| !policed && self.at_shaped_rate()) {
            let why = format!(
                "the port sends {} of its limit `shape.send` {}; the shaper delayed {} of the \
                 frames",
                bits(self.sends_bps()),
                bits(rate),
                percent(self.delayed())
            );
            return (why, "raise `shape.send` with `penstock port set`, or make the VM send less");
        }
        let policy = self.port.policy.name();
        let why = if policed || !self.at_policed_rate() {
            let share = percent(share);
            let why = format!("`police` (policy {policy}) dropped {share} of the port's frames");
            if let Some(depth) = self.port.shallow.filter(|_| self.port.reading.rx_tso > 0) {
                let why = format!(
                    "{why}; TCP of this VM backs off: bursts of 64 KiB meet a depth of {depth} \
                     bytes"
                );
                return (why, "leave out the burst of `police`, so that frames wait");
            }
            why
        } else {
            let (sends, (rate, times)) = (bits(self.sends_bps()), self.waits());
            if rate == super::SEND {
                let why = format!(
                    "the port sends {sends}, and its frames waited {times} times for the limit \
                     `send` of its tenant, or for the rates of its pairs"
                );
                let remedy = "raise `send` of the tenant, or make its VMs send less; in a fabric, \
                              raise the tenant's guarantee or wait for a queue";
                return (why, remedy);
            }
            let why = format!(
                "the port sends {sends}, and its frames waited {times} times for the rate {rate}"
            );
            if rate.ends_with("`contract`") {
                let remedy = "raise this rate of the contract with `penstock port set`, or make \
                              the VM send less";
                return (why, remedy);
            }
            format!("{why} (policy {policy})")
        };
        (why, "raise `police` with `penstock port set`, or make the VM send less")
    }

    /// Says whether most refused frames found no room in a queue, or waited too long in it.
    fn was_full(&self) -> &'static str {
        let late = self.drops(&[DropReason::QueueLate]);
        if 2 * late > self.drops(&super::REFUSED) { "was too slow" } else { "was full" }
    }

    fn of_link(&self, port: &str) -> (String, &'static str) {
        if self.port.reading.held_back > 0 && port.is_empty() {
            let why = format!(
                "the port's backlog at a shared output is at the limit; the worker skipped \
                 the port {} times",
                self.port.reading.held_back
            );
            return (why, MORE_OF_OUTPUT);
        }
        if let Some((queue, weights)) = self.full_queue(port) {
            let why = format!(
                "queue {} of {port} (weight {} of {weights}) {} for {} of the port's frames",
                queue.queue,
                queue.weight,
                self.was_full(),
                percent(self.drops(&super::REFUSED))
            );
            return (why, self.more_of(Egress::Wfq));
        }
        let mut shared = self.growth.ports.iter().filter(|to| to.egress == Egress::FairShare);
        let refused = self.drops(&super::REFUSED);
        if refused >= super::NOTICEABLE_PERMILLE && shared.any(|to| to.name == port) {
            let (was, share) = (self.was_full(), percent(refused));
            let why = format!("the port's queue at {port} {was} for {share} of its frames");
            return (why, MORE_OF_OUTPUT);
        }
        if let Some(output) = self.crowded().filter(|output| output.name == port) {
            let waiting = self.port.reading.queued;
            let signals = output.reading.tx_marked + output.reading.tx_trimmed;
            let mut why = format!("{waiting} of the port's frames wait at {port}, a full output");
            if signals > 0 {
                why.push_str(&format!(", which signalled congestion {signals} times"));
            }
            let lost = self.drops(&[DropReason::EarlySignal]);
            if lost >= super::NOTICEABLE_PERMILLE {
                let lost = percent(lost);
                why.push_str(&format!(
                    "; {lost} of the port's frames were dropped as early signals"
                ));
            }
            return (why, self.more_of(output.egress));
        }
        let link = self.growth.links.iter().find(|link| link.port == port);
        let Some(link) = link else {
            return ("a link was full, and is no longer watched".to_owned(), "ask again");
        };
        let (sent, capacity) = (percent(link.sent_permille), bits(link.capacity_bps));
        let mut why = format!("the link of {port} sends {sent} of {capacity}");
        let part = link.parts.iter().find(|part| part.port == self.port.name);
        let waits = self.port.reading.link_waits;
        if let Some(part) = part.filter(|_| waits > 0) {
            let part = bits(part.bps);
            why.push_str(&format!(
                "; the port's share is {part}, and the port's frames waited {waits} times for it"
            ));
        } else {
            let full = percent(self.drops(&[DropReason::RingFull, DropReason::HandoverFull]));
            why.push_str(&format!("; the link's ring was full for {full} of the port's frames"));
        }
        (why, "sell less of the link, or use a faster link; `contract` or `police` sets the share")
    }

    /// Returns the remedies for frames that wait at an output, or that found no room there.
    fn more_of(&self, egress: Egress) -> &'static str {
        match egress {
            Egress::FairShare => MORE_OF_OUTPUT,
            Egress::Wfq if self.growth.in_fabric => {
                "ask the controller for the reason (`penstock controller explain TENANT`), or \
                 raise `link` of the output"
            }
            Egress::Wfq => {
                "raise the queue's weight in `wfq`, give the tenant its own queue (`dscp`), or \
                 raise `link` of the output"
            }
            Egress::Fifo | Egress::FqCodel => {
                "raise `link` of the output, or divide it among tenants with egress = \
                 \"fair-share\""
            }
        }
    }

    fn destination(&self, port: &str) -> (String, &'static str) {
        let share = percent(self.drops(&super::REFUSED));
        let receiver = if port.is_empty() { "a removed receiver" } else { port };
        if 2 * self.drops(&[DropReason::InboundShare]) > self.drops(&super::REFUSED) {
            let why = format!(
                "{receiver} received more than its share of this uplink: `inbound` dropped {share} \
                 of the frames"
            );
            let remedy = "raise `uplink_weight` of the receiver's tenant, or `uplink_share` of the \
                          receiver; give the uplink a faster link or core";
            return (why, remedy);
        }
        if 2 * self.drops(&[DropReason::PairReceiveLimit]) > self.drops(&super::REFUSED) {
            let why = format!(
                "{receiver} received more than its guarantee in the fabric: rate allocation \
                 dropped {share} of the frames"
            );
            return (why, "raise the guarantee of the receiver's tenant, or send less");
        }
        let above = self.drops(&[DropReason::ReceiveLimit]);
        let together = self.drops(&[DropReason::TenantLimit]);
        if 2 * (above + together) > self.drops(&super::REFUSED) {
            let whose = if above >= together { "the port" } else { "the tenant" };
            let why = format!(
                "{receiver} received too much: `receive` of {whose} dropped {share} of the frames"
            );
            let remedy = "raise `receive` of the receiver or its tenant, or send less; in a \
                          fabric, raise the tenant's guarantee or wait for a queue";
            return (why, remedy);
        }
        if self.drops(&super::REFUSED) < super::NOTICEABLE_PERMILLE
            && let Some(to) = self.waited_for()
        {
            if !to.queues.is_empty() {
                let why = format!(
                    "most of the port's frames waited at {receiver} for the ceiling of their \
                     tenant, which held frames back {} times",
                    to.reading.receive_waits
                );
                let remedy = "raise the tenant's rate in `wfq.ceilings`, or send less; in a \
                              fabric, raise the tenant's guarantee or wait for a queue";
                return (why, remedy);
            }
            let why = format!(
                "most of the port's frames waited for the limit `receive` of {receiver}, which \
                 held frames back {} times",
                to.reading.receive_waits
            );
            return (why, "raise `receive` of the receiver or its tenant, or send less");
        }
        let was = self.was_full();
        let why = format!("the ring or queue of {receiver} {was} for {share} of the port's frames");
        let of_queue = self.drops(&[DropReason::QueueFull, DropReason::QueueLate]);
        if 2 * of_queue > self.drops(&super::REFUSED) {
            let remedy = "raise `shape.receive`, `link` or `queue` of the receiver, give it more \
                          CPU time, or send less";
            return (why, remedy);
        }
        (why, "give the receiver longer rings, more queues or more CPU time")
    }

    fn entitlement(&self, answer: &Explanation) -> (String, &'static str) {
        let why = if self.in_debt() {
            format!(
                "the port's last batch overdrew its cycle bucket by {}; at {}, the port sends \
                 nothing for {} s",
                amount(self.port.debt, "cycles"),
                cycles(answer.entitled),
                self.port.debt.div_ceil(answer.entitled.max(1))
            )
        } else {
            format!(
                "the port used {} and is entitled to {}; it had frames but no cycles for {} of the \
                 time",
                cycles(answer.used),
                cycles(answer.entitled),
                percent(answer.throttled_permille)
            )
        };
        let remedy = match answer.policy.as_str() {
            "cycles-strict" => {
                "sell the port more `cycles`, or let it use spare cycles: `ingress_policy` \
                 cycles-minmax"
            }
            _ => "sell the port more `cycles`, or raise its `cycle_weight` for spare cycles",
        };
        (why, remedy)
    }

    fn neighbours(&self, answer: &Explanation) -> (String, &'static str) {
        let others = answer.consumers.iter().filter(|consumer| consumer.port != self.port.name);
        // Rounded shares may add up to more than the whole.
        let total: u64 = others.clone().map(|consumer| consumer.share_permille).sum();
        let total = total.min(1_000);
        let most = others.max_by_key(|consumer| consumer.share_permille);
        let most = most.map_or_else(String::new, |most| {
            format!(", most of all {} with {}", most.port, percent(most.share_permille))
        });
        let mut why = format!(
            "worker {} is full, and other ports use {} of the worker's cycles{most}",
            self.worker,
            percent(total)
        );
        if self.port.policy.is_metered() {
            let (used, entitled) = (cycles(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; the port got {used} and is entitled to {entitled}"));
            return (
                why,
                "give the port an earlier `priority`, move it to another `worker`, or sell less of \
                 the core",
            );
        }
        why.push_str(&self.free(answer));
        (why, "set `ingress_policy` = \"cycles-minmax\" and `cycles` for each port")
    }

    /// Returns the clause that a port without purchased cycles has a guaranteed minimum and a share
    /// of spare cycles.
    fn free(&self, answer: &Explanation) -> String {
        if self.port.policy.is_metered() || answer.entitled == 0 {
            return String::new();
        }
        format!(
            "; the port purchased no cycles: {} are guaranteed, plus a weighted share of spare \
             cycles, and it used {}",
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
            "worker {} is {} busy, and this port used {} of the spent cycles ({})",
            self.worker,
            percent(answer.busy_permille),
            percent(permille(answer.used, total)),
            cycles(answer.used)
        );
        (why, "give the port another core with `cores`, `queues` or `worker`")
    }

    /// Returns the most frequent reason for drops of the port's frames, and the part of the frames
    /// in thousandths. Returns `None` if the dropped part is below [`super::NOTICEABLE_PERMILLE`].
    fn main_drop(&self) -> Option<(DropReason, u64)> {
        let share = |reason: &DropReason| self.drops(&[*reason]);
        let most = *DropReason::ALL.iter().max_by_key(|reason| share(reason))?;
        Some((most, share(&most))).filter(|(_, share)| *share >= super::NOTICEABLE_PERMILLE)
    }

    fn nothing(&self, answer: &Explanation) -> (String, &'static str) {
        let (rate, sent) = (amount(answer.sends_pps, "frames/s"), bits(answer.sends_bps));
        let mut why = format!("the port sends {rate}, {sent}, and has no backlog");
        why.push_str(&self.free(answer));
        if self.port.policy.is_metered() && answer.entitled > 0 {
            let (used, entitled) = (cycles(answer.used), cycles(answer.entitled));
            why.push_str(&format!("; the port uses {used} and is entitled to {entitled}"));
        }
        if let Some((reason, share)) = self.main_drop() {
            let (name, help) = (reason.name(), reason.help());
            why.push_str(&format!(
                "; {} of the port's frames are dropped as `{name}`: {help}",
                percent(share)
            ));
            return (why, "see `penstock stats --drops`, and remove the cause of the drops");
        }
        (why, "look for the cause inside the VM or at the far end: CPU, TCP windows, application")
    }
}
