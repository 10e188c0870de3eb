//! Counts what arrives through an uplink for pairs of VMs, and answers questions about the pairs.
//!
//! # Approach
//!
//! Hosts of a fabric limit each pair of VMs that share queue 0
//! ([`penstock_qos::pair_table`]). The sending host puts a question ([`marker`]) behind the pair's
//! frames, once per period. Both travel through the same queues. The question of a table for rates
//! follows the frames that it counts. The receiving host counts the frames, intercepts the
//! question, and sends it back as an answer. The sending host intercepts the answer. No marker
//! reaches a VM.
//!
//! A table for guarantees ([`PairLimits::Guarantees`]) only needs the parts of the guarantees in
//! the answers. Its host counts no arriving frames, so its answers say that no frame arrived. The
//! host of a sender that looks for spare bandwidth then keeps the pair at its guarantee. Its
//! questions may pass the pair's frames in queues, and all answers may.
//!
//! Both kinds of tables also restore the code points of frames ([`own_code_point`]), which the
//! sending host announces ahead of them.
//!
//! If the paths of frames and markers differ, a marker may overtake frames. The next question then
//! counts these frames, so a loss that seems to occur once is no loss in sum.
//!
//! # Cost
//!
//! A worker calls [`arrive`] only for uplinks with pairs, so other ports pay for one comparison per
//! batch. With a table for guarantees, several frames in a row for one VM cost one atomic addition,
//! and none if the VM's pairs are only measured.

pub(crate) mod flow;
pub(crate) mod marker;
mod own_code_point;

use std::sync::Arc;

use penstock_qos::pair_table::{PairKey, PairLimits, PairTable};
use penstock_units::Nanos;

use crate::batch::{Batch, Verdict};
use crate::counters::PortCounters;
use crate::drop::DropReason;
use crate::headers::is_ce;
use crate::ingress_policer::{link_bytes, on_wire};
use marker::Marker;
use own_code_point::restore;

/// What is known about the ports that frames from an uplink go to.
pub(crate) trait Receivers {
    /// Whether a port leads out of the host.
    fn leads_out(&self, port: u16) -> bool;

    /// Returns the code point of the tenant whose VMs get a frame from the uplink `uplink`. Returns
    /// `None` if a port without a code point also gets the frame.
    fn code_point(&self, verdict: Verdict, uplink: u16) -> Option<u8>;
}

/// Returns the MAC address at `at` in the low 48 bits; 0 if the frame is too short.
fn mac_at(head: &[u8], at: usize) -> u64 {
    let Some(mac) = head.get(at..).and_then(|rest| rest.first_chunk::<6>()) else { return 0 };
    penstock_units::MacAddr(*mac).to_u64()
}

/// Returns the destination address of a frame.
pub(crate) fn destination(head: &[u8]) -> u64 {
    mac_at(head, 0)
}

/// Counts what arrives for the VMs of a table for guarantees. A run of frames for one VM changes
/// the shared counter of the VM once.
struct Arriving<'a> {
    table: &'a PairTable,
    /// Port of the VM of the last frame.
    port: Option<u16>,
    /// Whether the VM is under limits. Nobody reads the counters of other VMs.
    is_limited: bool,
    /// Bytes on a link of the run so far.
    bytes: u32,
}

impl Arriving<'_> {
    /// Counts a frame for the VM at `port`, which has `bytes` bytes on a link.
    fn add(&mut self, port: u16, bytes: impl FnOnce() -> u32) {
        if self.port != Some(port) {
            self.end_run();
            (self.port, self.is_limited) = (Some(port), self.table.is_limited(port));
        }
        if self.is_limited {
            self.bytes = self.bytes.saturating_add(bytes());
        }
    }

    fn end_run(&mut self) {
        let bytes = core::mem::take(&mut self.bytes);
        if let Some(port) = self.port.filter(|_| bytes > 0) {
            self.table.arrived(port, bytes);
        }
    }
}

/// Counts the frames of a classified batch that arrived through the uplink `uplink`, restores their
/// code points, and drops frames above the rate of their receiver. Intercepts markers: a question
/// becomes an answer that leaves through the uplink. Markers to ports that lead out of the host
/// only pass through. `counters` has the counters of all ports, indexed by port number.
#[inline(never)]
pub(crate) fn arrive(
    table: &PairTable,
    batch: &mut Batch,
    uplink: u16,
    now: Nanos,
    counters: &[Option<Arc<PortCounters>>],
    receivers: &impl Receivers,
) {
    let own = counters.get(usize::from(uplink)).and_then(Option::as_deref);
    let counts = table.limits() == PairLimits::Rates;
    let mut arriving = Arriving { table, port: None, is_limited: false, bytes: 0 };
    for i in 0..batch.len() {
        let verdict = batch.at(i).verdict;
        if marker::is_marker(batch.head(i)) {
            let passes = matches!(verdict, Verdict::Output(port) if receivers.leads_out(port));
            if !passes {
                batch.at_mut(i).verdict = intercept(table, batch, i, uplink, now);
            }
            continue;
        }
        restore(table, batch, i, receivers.code_point(verdict, uplink), now);
        let Verdict::Output(port) = verdict else { continue };
        if !counts {
            arriving.add(port, || link_bytes(on_wire(batch, i)));
            continue;
        }
        if !table.is_limited(port) {
            continue;
        }
        let (size, head) = (on_wire(batch, i), batch.head(i));
        if table.receive(port, mac_at(head, 6), size, is_ce(head), now) {
            continue;
        }
        batch.at_mut(i).verdict = Verdict::Drop(DropReason::PairReceiveLimit);
        let target = counters.get(usize::from(port)).and_then(Option::as_deref);
        if let (Some(own), Some(target)) = (own, target) {
            own.count_refused_by(target, DropReason::PairReceiveLimit, 1);
        }
    }
    arriving.end_run();
}

/// Reads marker `i`, which may be invalid. Returns the marker's verdict.
fn intercept(table: &PairTable, batch: &mut Batch, i: usize, uplink: u16, now: Nanos) -> Verdict {
    let ends = Verdict::Drop(DropReason::RateMarker);
    let port = match batch.at(i).verdict {
        Verdict::Output(port) => port,
        dropped @ Verdict::Drop(_) => return dropped,
        Verdict::Flood(_) | Verdict::OutputSet(_) => return ends,
    };
    let (head, len) = (batch.head(i), batch.at(i).len as usize);
    let from = mac_at(head, 6);
    match marker::read(head, len) {
        Some(Marker::Question(question)) => match table.asked(port, from, &question) {
            Some(answer) => {
                marker::answer(batch.head_mut(i), &answer);
                Verdict::Output(uplink)
            }
            None => ends,
        },
        Some(Marker::Answer(answer)) => {
            table.answered(port, from, &answer);
            ends
        }
        Some(Marker::Announcement { flow, dscp }) => {
            if let Some(pair) = PairKey::new(port, from) {
                table.code_points().announced(pair, flow, dscp, now);
            }
            ends
        }
        None => ends,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::{dscp_of, mark};
    use crate::offload::Offload;
    use crate::snapshot::{Domain, PortPolicy, Snapshot};
    use penstock_qos::pair_table::{Answer, Question, VmRates};
    use penstock_units::{BitsPerSecond, Vid};
    use proptest::prelude::*;

    const UPLINK: u16 = 0;
    const VM: u16 = 1;
    const OTHER_UPLINK: u16 = 2;
    const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn table(rate: u64) -> PairTable {
        let table = PairTable::new(3, 1);
        let rate = BitsPerSecond(rate);
        table.limit(VM, VmRates { default: rate, send: rate, receive: rate });
        table
    }

    fn addresses() -> [u8; 12] {
        let mut addresses = [0; 12];
        addresses[..6].copy_from_slice(&NEAR);
        addresses[6..].copy_from_slice(&FAR);
        addresses
    }

    fn counters() -> Vec<Option<Arc<PortCounters>>> {
        (0..3).map(|_| Some(Arc::default())).collect()
    }

    /// Code point of the VM's tenant in the fabric.
    const FABRIC: u8 = 8;

    /// Returns a snapshot with two uplinks and a VM. The domains and output sets 0 have all ports,
    /// and those with number 1 have the VM and the uplink [`UPLINK`].
    fn snapshot() -> Snapshot {
        let ports = [(UPLINK, None), (VM, Some(1)), (OTHER_UPLINK, None)];
        let policies = ports.map(|(port, tenant)| {
            let mut policy = PortPolicy::access(port, tenant, Vid::UNTAGGED, 0);
            policy.dscp = tenant.map(|_| FABRIC);
            Some(Arc::new(policy.finish()))
        });
        let domain = |vid, members: &[u16]| Domain {
            tenant: Some(1),
            vid,
            members: members.into(),
            fdb_limit: 64,
        };
        let sets: [&[u16]; 2] = [&[UPLINK, VM, OTHER_UPLINK], &[UPLINK, VM]];
        let domains = sets.iter().zip(0..).map(|(set, vid)| domain(vid, set)).collect();
        let sets = sets.iter().map(|set| Box::from(*set)).collect();
        Snapshot::new(1, policies.into(), domains, sets, 300)
    }

    /// Passes frames with a verdict to [`arrive`]. Returns the frames' new verdicts.
    fn run(table: &PairTable, frames: &[&[u8]], verdict: Verdict) -> (Box<Batch>, Vec<Verdict>) {
        let mut batch = Batch::new();
        for bytes in frames {
            batch.push(bytes, Offload::NONE).unwrap();
        }
        (0..batch.len()).for_each(|i| batch.frame_mut(i).verdict = verdict);
        arrive(table, &mut batch, UPLINK, Nanos(1), &counters(), &snapshot());
        let verdicts = batch.frames().iter().map(|frame| frame.verdict).collect();
        (batch, verdicts)
    }

    fn question(number: u32) -> [u8; marker::LEN] {
        let question = Question { number, epoch: 1, sent: 2, ..Question::default() };
        marker::question(&addresses(), &question, false).unwrap()
    }

    /// An IPv4 frame with the ECN bits `ecn`.
    fn data(ecn: u8) -> Vec<u8> {
        let mut frame = addresses().to_vec();
        frame.extend([8, 0, 0x45, ecn]);
        frame.resize(1_000, 0);
        frame
    }

    #[test]
    fn a_question_is_answered_with_what_has_arrived_before_it() {
        let table = table(1_000_000_000);
        let ends = Verdict::Drop(DropReason::RateMarker);
        let to_vm = Verdict::Output(VM);
        assert_eq!(run(&table, &[&question(1)], to_vm).1, [ends], "the part is not known yet");
        let pair = table.receiving().next().unwrap().pair;
        table.set_receiver(pair, BitsPerSecond(77));
        let (plain, marked, asked) = (data(0), data(3), question(2));
        let (batch, verdicts) = run(&table, &[&plain, &marked, &asked, &plain], to_vm);
        assert_eq!(verdicts, [to_vm, to_vm, Verdict::Output(UPLINK), to_vm]);
        let Some(Marker::Answer(answer)) = marker::read(batch.head(2), marker::LEN) else {
            panic!("no answer")
        };
        assert_eq!((answer.number, answer.received, answer.marked), (2, 2, 1));
        assert_eq!(answer.part, BitsPerSecond(77));
        assert_eq!((&batch.head(2)[..6], &batch.head(2)[6..12]), (&FAR[..], &NEAR[..]));
    }

    #[test]
    fn a_table_for_guarantees_answers_with_a_part_and_counts_no_frames() {
        let table = PairTable::with_limits(3, 1, PairLimits::Guarantees);
        let rate = BitsPerSecond(8_000);
        table.limit(VM, VmRates { default: rate, send: rate, receive: rate });
        let to_vm = Verdict::Output(VM);
        run(&table, &[&question(1)], to_vm);
        table.set_receiver(table.receiving().next().unwrap().pair, BitsPerSecond(77));
        let (plain, asked) = (data(0), question(2));
        let mut frames = vec![&plain[..]; 20];
        frames.push(&asked);
        let (batch, verdicts) = run(&table, &frames, to_vm);
        assert!(verdicts[..20].iter().all(|verdict| *verdict == to_vm), "no limit on receiving");
        let Some(Marker::Answer(answer)) = marker::read(batch.head(20), marker::LEN) else {
            panic!("no answer")
        };
        assert_eq!((answer.number, answer.received), (2, 0));
        assert_eq!(answer.part, BitsPerSecond(77));
    }

    #[test]
    fn bytes_that_arrive_are_counted_for_vms_under_limits() {
        let table = PairTable::with_limits(3, 1, PairLimits::Guarantees);
        let rate = BitsPerSecond(8_000);
        let rates = VmRates { default: rate, send: rate, receive: rate };
        table.limit(VM, rates);
        table.measure(OTHER_UPLINK, rates);
        let mut batch = Batch::new();
        for (i, port) in [VM, VM, OTHER_UPLINK, OTHER_UPLINK, VM].into_iter().enumerate() {
            batch.push(&data(0), Offload::NONE).unwrap();
            batch.frame_mut(i).verdict = Verdict::Output(port);
        }
        arrive(&table, &mut batch, UPLINK, Nanos(1), &counters(), &snapshot());
        // A frame takes 24 bytes more on a link.
        assert_eq!(table.arrivals().collect::<Vec<_>>(), [(VM, 3 * 1_024), (OTHER_UPLINK, 0)]);
    }

    /// A UDP packet of version 4 or 6 with a correct checksum, behind VLAN tags.
    fn packet(version: u8, tags: usize, class: u8) -> Vec<u8> {
        let mut frame = addresses().to_vec();
        (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 9]));
        if version == 4 {
            frame.extend([8, 0, 0x45, class, 0, 28, 1, 2, 0, 0, 64, 17, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 5, 0, 6, 0, 8, 0, 0]);
            let ip = frame.len() - 28;
            let words =
                frame[ip..ip + 20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
            let sum = words.sum::<u32>();
            let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
            frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame.extend([0x86, 0xdd, 0x60 | class >> 4, class << 4 | 5, 0, 0, 0, 8, 17, 64]);
            frame.extend([7; 32]);
            frame.extend([0, 5, 0, 6, 0, 8, 0, 0]);
        }
        frame
    }

    /// Announces the code point `dscp` of the flow of a frame.
    fn announce(table: &PairTable, frame: &[u8], dscp: u8) {
        let marker = marker::announcement(frame, flow::number(frame).unwrap(), dscp).unwrap();
        let ends = [Verdict::Drop(DropReason::RateMarker)];
        assert_eq!(run(table, &[&marker], Verdict::Output(VM)).1, ends);
    }

    proptest! {
        #[test]
        fn a_frame_arrives_as_the_vm_has_sent_it(
            version in prop::sample::select(vec![4_u8, 6]),
            tags in 0..=2_usize,
            class in any::<u8>(),
        ) {
            let (table, sent) = (table(1_000_000_000), packet(version, tags, class));
            announce(&table, &sent, class >> 2);
            let mut marked = sent.clone();
            mark(&mut marked, FABRIC).unwrap();
            let (batch, verdicts) = run(&table, &[&marked], Verdict::Output(VM));
            prop_assert_eq!(batch.head(0), &sent[..]);
            prop_assert_eq!(verdicts, [Verdict::Output(VM)]);
        }
    }

    /// Returns the code point with which a frame arrives.
    fn arrives(table: &PairTable, frame: &[u8], verdict: Verdict) -> u8 {
        dscp_of(run(table, &[frame], verdict).0.head(0))
    }

    #[test]
    fn a_frame_without_an_announcement_loses_the_fabrics_code_point_only() {
        let (table, to_vm) = (table(1_000_000_000), Verdict::Output(VM));
        let (fabric, foreign) = (packet(4, 0, FABRIC << 2), packet(4, 0, 46 << 2));
        assert_eq!(arrives(&table, &fabric, to_vm), 0);
        assert_eq!(arrives(&table, &foreign, to_vm), 46, "from outside the fabric");
        announce(&table, &fabric, 34);
        assert_eq!(arrives(&table, &fabric, to_vm), 34);
        assert_eq!(arrives(&table, &foreign, to_vm), 46);
        assert_eq!(arrives(&table, &packet(6, 0, FABRIC << 2), to_vm), 0, "another flow");
        announce(&table, &fabric, 0);
        assert_eq!(arrives(&table, &fabric, to_vm), 0);
    }

    #[test]
    fn a_frame_that_leaves_the_host_again_keeps_the_fabrics_code_point() {
        let (table, frame) = (table(1_000_000_000), packet(4, 0, FABRIC << 2));
        announce(&table, &frame, 46);
        let cases = [
            (Verdict::Output(OTHER_UPLINK), FABRIC),
            (Verdict::Flood(0), FABRIC),
            (Verdict::OutputSet(0), FABRIC),
            (Verdict::Flood(1), 0),
            (Verdict::OutputSet(1), 0),
            (Verdict::Output(VM), 46),
        ];
        for (verdict, dscp) in cases {
            assert_eq!(arrives(&table, &frame, verdict), dscp, "{verdict:?}");
        }
    }

    #[test]
    fn frames_without_a_whole_ip_header_arrive_unchanged() {
        let table = table(1_000_000_000);
        announce(&table, &packet(4, 0, 0), 46);
        let (whole, deep) = (packet(4, 0, FABRIC << 2), packet(4, 3, FABRIC << 2));
        for frame in [&addresses()[..], &whole[..30], &deep[..]] {
            let mut padded = frame.to_vec();
            padded.resize(frame.len().max(14), 0);
            let (batch, _) = run(&table, &[&padded], Verdict::Output(VM));
            assert_eq!(batch.head(0), &padded[..]);
        }
    }

    #[test]
    fn no_marker_reaches_a_vm_whatever_it_contains() {
        let table = table(1_000_000_000);
        let ends = [Verdict::Drop(DropReason::RateMarker)];
        let good = question(1);
        let mut answer = good;
        marker::answer(&mut answer, &Answer { number: 9, epoch: 9, ..Answer::default() });
        let mut longer = good.to_vec();
        longer.resize(1_514, 0);
        let mut kind = good;
        kind[19] = 9;
        let announced = marker::announcement(&good, 1, 46).unwrap();
        let frames: [&[u8]; 6] = [&good, &answer, &good[..30], &longer, &kind, &announced];
        for frame in frames {
            for verdict in [Verdict::Output(VM), Verdict::Flood(0), Verdict::OutputSet(0)] {
                assert_eq!(run(&table, &[frame], verdict).1, ends, "{verdict:?} {frame:?}");
            }
        }
        let rule = Verdict::Drop(DropReason::Rule);
        assert_eq!(run(&table, &[&good], rule).1, [rule]);
        let through = Verdict::Output(OTHER_UPLINK);
        assert_eq!(run(&table, &[&good], through).1, [through], "it is for another host");
    }

    #[test]
    fn frames_above_the_receivers_rate_are_refused_and_not_counted() {
        let table = table(8_000);
        run(&table, &[&question(1)], Verdict::Output(VM));
        table.set_receiver(table.receiving().next().unwrap().pair, BitsPerSecond(1));
        let frame = data(0);
        let (mut passed, mut refused) = (0, 0);
        for _ in 0..20 {
            for verdict in run(&table, &[&frame[..]; 32], Verdict::Output(VM)).1 {
                match verdict {
                    Verdict::Output(VM) => passed += 1,
                    Verdict::Drop(DropReason::PairReceiveLimit) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(passed + refused, 640);
        assert_eq!(passed, 262, "the bucket holds 262,144 bytes");
        let (batch, _) = run(&table, &[&question(2)], Verdict::Output(VM));
        let Some(Marker::Answer(answer)) = marker::read(batch.head(0), marker::LEN) else {
            panic!("no answer")
        };
        assert_eq!(answer.received, passed);
    }
}
