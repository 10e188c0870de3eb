//! Hosts of a fabric that limit pairs of VMs to their receivers' guarantees: what a tenant sends
//! over a link between its VMs.

use std::collections::{BTreeMap, VecDeque};

use penstock_control::pair_control::{GuaranteeControl, TenantTerms, VmTerms};
use penstock_qos::pair_table::{Answer, Delayed, PairLimits, PairTable, Question, Sending};
use penstock_qos::policer::Size;
use penstock_units::{Nanos, Rng};

/// Guarantee of each VM in each direction.
const HOSE: u64 = 2_350_000;
const FRAME: Size = Size { bytes: 1_250, frames: 1 };
const FRAME_BITS: u64 = 10_000;
/// Number of the only VM of each host.
const VM: u16 = 1;
/// Time in ms of a question or answer from one host to another.
const DELAY_MS: u64 = 20;
const PERIOD_MS: u64 = 50;
/// Frames that fit into a VM's ring, and into a tenant's lane.
const RING: usize = 256;

/// A host with one VM of the tenant.
struct Host {
    table: PairTable,
    control: GuaranteeControl,
    vms: BTreeMap<u16, TenantTerms>,
    /// Receivers of the frames in the VM's ring, and of those in the tenant's lane at the uplink.
    ring: VecDeque<usize>,
    lane: VecDeque<usize>,
    /// Receivers of the frames that wait for the limits of their pairs, by the pairs' slots.
    lines: BTreeMap<usize, VecDeque<usize>>,
    /// Bits that the lane may send now.
    tokens: u64,
    /// Bits that the VM still has to offer to each receiver.
    offers: Vec<u64>,
    /// Number of flows to each receiver, which take turns, and of the frames sent to it.
    flows: Vec<u32>,
    frames: Vec<u32>,
    /// Frames above a pair's limit.
    refused: u64,
    /// Frames that were lost as a signal to their sender.
    signals: u64,
}

impl Host {
    fn new(receivers: usize) -> Self {
        let terms = VmTerms { send: HOSE, receive: HOSE, headroom_permille: 1_000 };
        let table = PairTable::with_limits(2, 5, PairLimits::Guarantees);
        table.set_lines(true);
        let (control, ring, lane) = (GuaranteeControl::default(), VecDeque::new(), VecDeque::new());
        let vms = [(VM, TenantTerms { tenant: 0, terms, is_held: true })].into();
        let (offers, lines) = (vec![0; receivers], BTreeMap::new());
        let (flows, frames) = (vec![1; receivers], vec![0; receivers]);
        let (tokens, refused, signals) = (0, 0, 0);
        Self {
            table,
            control,
            vms,
            ring,
            lane,
            lines,
            tokens,
            offers,
            flows,
            frames,
            refused,
            signals,
        }
    }

    /// Puts a millisecond's frames into the ring, while it has room. Receivers take turns to be the
    /// first: otherwise, a full ring would hold few frames to the last one.
    fn offer(&mut self, rates: &[u64], ms: u64) {
        self.offers.iter_mut().zip(rates).for_each(|(offer, rate)| *offer += rate / 1_000);
        let count = self.offers.len();
        let first = usize::try_from(ms).unwrap() % count;
        for receiver in (first..first + count).map(|receiver| receiver % count) {
            while self.offers[receiver] >= FRAME_BITS {
                self.offers[receiver] -= FRAME_BITS;
                if self.ring.len() < RING {
                    self.ring.push_back(receiver);
                }
            }
        }
    }

    /// Moves the frames that may leave the lines of their pairs to the lane.
    fn release(&mut self, now: Nanos) {
        for (slot, line) in &mut self.lines {
            while let Some(receiver) = line.front().copied()
                && self.table.departs(VM, *slot, FRAME.bytes, now).is_ok()
            {
                line.pop_front();
                if self.lane.len() < RING {
                    self.lane.push_back(receiver);
                }
            }
        }
    }

    /// Makes a frame wait for the limit of its pair. Returns whether a question is due.
    fn delay(&mut self, receiver: usize, delayed: Delayed) -> bool {
        let Delayed { slot, signals, asks } = delayed;
        if signals {
            self.table.refuse(slot, FRAME);
            self.signals += 1;
        } else if self.table.waits(VM, slot, FRAME) {
            self.lines.entry(slot).or_default().push_back(receiver);
        } else {
            self.table.refuse(slot, FRAME);
            self.refused += 1;
        }
        asks
    }

    /// Sends frames of the ring until the VM has to wait. Returns the questions with their
    /// receivers.
    fn send(&mut self, now: Nanos) -> Vec<(usize, Question)> {
        let mut asked = Vec::new();
        self.release(now);
        while !self.ring.is_empty() && self.table.wait(VM, now) == Nanos::ZERO {
            let burst = self.table.batch_limit(VM).min(32);
            for receiver in self.ring.drain(..burst.min(self.ring.len())).collect::<Vec<_>>() {
                self.frames[receiver] += 1;
                // The first bits of the hash select a bit of the sketch.
                let flow = (self.frames[receiver] % self.flows[receiver]) << 26;
                match self.table.send_flow(VM, mac(receiver), Some(flow), FRAME, now) {
                    Sending::Free | Sending::Pass => {}
                    Sending::Ask(slot) => {
                        asked.push((receiver, self.table.question(slot).unwrap()));
                    }
                    Sending::Signal(slot) => {
                        self.table.take_back(VM, slot, FRAME, true);
                        self.signals += 1;
                        continue;
                    }
                    Sending::Wait(delayed) => {
                        if self.delay(receiver, delayed) {
                            let question = self.table.question(delayed.slot).unwrap();
                            asked.push((receiver, question));
                        }
                        continue;
                    }
                    Sending::Refuse => {
                        self.refused += 1;
                        continue;
                    }
                }
                if self.lane.len() < RING {
                    self.lane.push_back(receiver);
                }
            }
        }
        asked
    }
}

fn mac(host: usize) -> u64 {
    0x0200_0000_0000 + u64::try_from(host).unwrap()
}

enum Marker {
    Question(Question),
    Answer(Answer),
}

/// Senders and receivers of a tenant on both sides of a link.
struct Net {
    senders: Vec<Host>,
    receivers: Vec<Host>,
    /// Markers with their times of arrival in ms, senders and receivers.
    markers: VecDeque<(u64, usize, usize, Marker)>,
    ms: u64,
}

impl Net {
    fn new(senders: usize, receivers: usize) -> Self {
        let hosts =
            |count: usize| -> Vec<Host> { (0..count).map(|_| Host::new(receivers)).collect() };
        let (senders, receivers) = (hosts(senders), hosts(receivers));
        let mut net = Self { senders, receivers, markers: VecDeque::new(), ms: 0 };
        net.period_ends();
        net
    }

    fn period_ends(&mut self) {
        let now = Nanos::from_millis(self.ms);
        for host in self.senders.iter_mut().chain(&mut self.receivers) {
            host.control.period_ends(&host.table, &host.vms, now);
        }
    }

    /// Puts the known limits of all pairs into force, or removes them, as a plan does.
    fn hold(&mut self, is_held: bool) {
        for host in self.senders.iter_mut().chain(&mut self.receivers) {
            host.vms.values_mut().for_each(|of| of.is_held = is_held);
            if is_held {
                host.table.hold(VM);
            } else {
                host.table.release(VM);
            }
        }
    }

    /// Runs for `millis` ms, in which the senders' VMs offer `rates` in bits per second to each
    /// receiver. Returns the bits that crossed the link to each receiver, in each ms.
    fn millis(&mut self, millis: u64, rates: &[Vec<u64>]) -> Vec<Vec<u64>> {
        (0..millis).map(|_| self.milli(rates)).collect()
    }

    fn milli(&mut self, rates: &[Vec<u64>]) -> Vec<u64> {
        self.ms += 1;
        self.carry();
        let (now, at) = (Nanos::from_millis(self.ms), self.ms + DELAY_MS);
        let mut crossed = vec![0; self.receivers.len()];
        for (sender, (host, rates)) in self.senders.iter_mut().zip(rates).enumerate() {
            host.offer(rates, self.ms);
            for (receiver, question) in host.send(now) {
                self.markers.push_back((at, sender, receiver, Marker::Question(question)));
            }
            // The lane has the tenant's guarantee.
            host.tokens = (host.tokens + HOSE / 1_000).min(2 * FRAME_BITS);
            while host.tokens >= FRAME_BITS
                && let Some(receiver) = host.lane.pop_front()
            {
                host.tokens -= FRAME_BITS;
                crossed[receiver] += FRAME_BITS;
                self.receivers[receiver].table.arrived(VM, FRAME.bytes);
            }
        }
        if self.ms.is_multiple_of(PERIOD_MS) {
            self.period_ends();
        }
        crossed
    }

    /// Delivers the markers that arrive now.
    fn carry(&mut self) {
        while self.markers.front().is_some_and(|(at, ..)| *at <= self.ms) {
            let Some((_, sender, receiver, marker)) = self.markers.pop_front() else { return };
            match marker {
                Marker::Question(question) => {
                    let table = &self.receivers[receiver].table;
                    if let Some(answer) = table.asked(VM, mac(sender), &question) {
                        let at = self.ms + DELAY_MS;
                        self.markers.push_back((at, sender, receiver, Marker::Answer(answer)));
                    }
                }
                Marker::Answer(answer) => {
                    self.senders[sender].table.answered(VM, mac(receiver), &answer);
                }
            }
        }
    }
}

/// Returns the largest number of bits in a second.
fn largest_second(crossed: &[Vec<u64>]) -> u64 {
    let bits: Vec<u64> = crossed.iter().map(|all| all.iter().sum()).collect();
    bits.windows(1_000).map(|second| second.iter().sum::<u64>()).max().unwrap()
}

/// Returns the bits per second to each receiver.
fn means(crossed: &[Vec<u64>]) -> Vec<u64> {
    let millis = u64::try_from(crossed.len()).unwrap();
    let sum = |receiver: usize| crossed.iter().map(|all| all[receiver]).sum::<u64>();
    (0..crossed[0].len()).map(|receiver| sum(receiver) * 1_000 / millis).collect()
}

#[test]
fn three_senders_send_no_more_than_two_receivers_may_receive() {
    let mut net = Net::new(3, 2);
    let flood = vec![vec![HOSE * 7 / 10; 2]; 3];
    let first = net.millis(3_000, &flood);
    // Until the first answers, only the senders' guarantees limit the tenant.
    let most = largest_second(&first);
    assert!(most <= 2 * HOSE + 3 * HOSE * 3 / 10, "{most}");
    let later = net.millis(5_000, &flood);
    let most = largest_second(&later);
    assert!(most <= 2 * HOSE * 104 / 100, "{most}");
    let rates = means(&later);
    assert!(rates.iter().sum::<u64>() >= 2 * HOSE * 97 / 100, "{rates:?}");
    // The ring of a VM that floods holds more frames to the first receiver.
    for rate in rates {
        assert!((HOSE * 90 / 100..=HOSE * 106 / 100).contains(&rate), "{rate}");
    }
}

#[test]
fn a_pair_alone_has_its_whole_guarantee_and_loses_only_what_its_line_cannot_hold() {
    let mut net = Net::new(1, 1);
    net.millis(1_000, &[vec![HOSE * 99 / 100]]);
    let lost = |net: &Net| (net.senders[0].refused, net.senders[0].signals);
    let before = lost(&net);
    let rate = means(&net.millis(4_000, &[vec![HOSE * 99 / 100]]))[0];
    assert!((HOSE * 98 / 100..=HOSE).contains(&rate), "{rate}");
    assert_eq!(lost(&net), before, "below the guarantee");
    // A flood fills the line. 940 frames pass, and one of 64 is a signal.
    net.millis(1_000, &[vec![3 * HOSE]]);
    let (_, signals) = lost(&net);
    let rate = means(&net.millis(4_000, &[vec![3 * HOSE]]))[0];
    assert!((HOSE * 97 / 100..=HOSE * 101 / 100).contains(&rate), "{rate}");
    let signals = net.senders[0].signals - signals;
    assert!((12..=17).contains(&signals), "{signals}");
    assert!(net.senders[0].ring.is_empty(), "no acknowledgement would wait in the ring");
}

#[test]
fn a_pair_uses_what_another_pair_of_its_receiver_leaves() {
    let mut net = Net::new(2, 1);
    let small = 400_000;
    let rates = vec![vec![small], vec![3 * HOSE]];
    net.millis(2_000, &rates);
    let lost = |net: &Net| net.senders[0].refused + net.senders[0].signals;
    let before = lost(&net);
    let crossed = net.millis(4_000, &rates);
    let rate = means(&crossed)[0];
    assert!((HOSE * 95 / 100..=HOSE * 104 / 100).contains(&rate), "{rate}");
    assert_eq!(lost(&net), before, "the smaller pair has what it wants");
    // When the large pair pauses, the small one may use the whole guarantee.
    let rates = vec![vec![3 * HOSE], vec![0]];
    net.millis(5_000, &rates);
    let rate = means(&net.millis(2_000, &rates))[0];
    assert!(rate >= HOSE * 97 / 100, "{rate}");
}

#[test]
fn a_pair_has_the_senders_guarantee_if_the_far_host_does_not_answer() {
    let mut net = Net::new(1, 1);
    net.receivers[0].vms.clear();
    let flood = vec![vec![3 * HOSE]];
    net.millis(1_000, &flood);
    let rate = means(&net.millis(2_000, &flood))[0];
    assert!((HOSE * 97 / 100..=HOSE * 101 / 100).contains(&rate), "{rate}");
    assert_eq!(net.senders[0].table.receiving().count(), 0);
}

#[test]
fn a_tenant_that_loses_its_queue_is_limited_from_the_first_frame_on() {
    let mut net = Net::new(3, 2);
    // The lanes have room for what the VMs send, so only limits of pairs can slow them down.
    let flood = vec![vec![HOSE * 48 / 100; 2]; 3];
    net.hold(false);
    let free = net.millis(3_000, &flood);
    let sum: u64 = means(&free).iter().sum();
    assert!(sum >= 2 * HOSE * 140 / 100, "no limit with a queue of its own: {sum}");
    assert!(net.senders.iter().all(|host| host.refused + host.signals == 0));
    net.hold(true);
    let most = largest_second(&net.millis(3_000, &flood));
    assert!(most <= 2 * HOSE * 110 / 100, "{most}");
    net.hold(false);
    // Frames that wait leave faster and faster.
    let sums: Vec<u64> = (0..9).map(|_| means(&net.millis(500, &flood)).iter().sum()).collect();
    assert!(sums[0] >= 2 * HOSE && sums[8] >= 2 * HOSE * 140 / 100, "{sums:?}");
}

#[test]
fn a_vm_that_loses_its_guarantee_is_measured_until_its_lines_are_empty() {
    let mut net = Net::new(1, 1);
    net.millis(2_000, &[vec![3 * HOSE]]);
    net.senders[0].vms.clear();
    net.millis(51, &[vec![HOSE / 2]]);
    let state = |net: &Net| {
        let host = &net.senders[0];
        let waiting: usize = host.lines.values().map(VecDeque::len).sum();
        (waiting > 0, host.table.is_limited(VM), host.table.is_measured(VM))
    };
    assert_eq!(state(&net), (true, false, true));
    net.millis(500, &[vec![HOSE / 2]]);
    assert_eq!(state(&net), (false, false, false));
    assert_eq!(net.senders[0].table.sending().count(), 0);
}

/// Returns the rates of pairs that share the guarantees of their senders and receivers fairly: all
/// flows grow alike until a guarantee is used up. `pairs` has the number of flows of each pair.
fn fair(pairs: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let (senders, receivers) = (pairs.len(), pairs[0].len());
    let (mut left, mut rates) = ((vec![HOSE; senders], vec![HOSE; receivers]), Vec::new());
    rates.resize(senders, vec![0; receivers]);
    let mut grows = pairs.to_vec();
    while grows.iter().flatten().any(|flows| *flows > 0) {
        let out = |grows: &[Vec<u64>], at: usize| grows[at].iter().sum::<u64>();
        let into = |grows: &[Vec<u64>], at: usize| grows.iter().map(|of| of[at]).sum::<u64>();
        let share = |(left, flows): (u64, u64)| left.checked_div(flows);
        let shares = (0..senders).filter_map(|at| share((left.0[at], out(&grows, at))));
        let least =
            shares.chain((0..receivers).filter_map(|at| share((left.1[at], into(&grows, at)))));
        let least = least.min().unwrap();
        for sender in 0..senders {
            for receiver in 0..receivers {
                let more = least * grows[sender][receiver];
                rates[sender][receiver] += more;
                left.0[sender] -= more;
                left.1[receiver] -= more;
            }
        }
        // A guarantee that is used up has less than 1 bit/s for each flow.
        let small: u64 = pairs.iter().flatten().sum();
        for (sender, of) in grows.iter_mut().enumerate() {
            for (receiver, flows) in of.iter_mut().enumerate() {
                if left.0[sender] <= small || left.1[receiver] <= small {
                    *flows = 0;
                }
            }
        }
    }
    rates
}

/// A pair has 20 frames per second, so it has a different number of frames in each measurement.
#[test]
fn slow_pairs_use_what_their_guarantees_allow() {
    for seed in 1..=4 {
        let mut rng = Rng::new(seed);
        let pairs: Vec<Vec<u64>> =
            (0..10).map(|_| (0..10).map(|_| u64::from(rng.below(10) < 7)).collect()).collect();
        let due: u64 = fair(&pairs).iter().flatten().sum();
        let flood = |of: &Vec<u64>| of.iter().map(|flows| flows * HOSE).collect();
        let flood: Vec<Vec<u64>> = pairs.iter().map(flood).collect();
        let mut net = Net::new(10, 10);
        net.millis(5_000, &flood);
        for _ in 0..5 {
            let sum = means(&net.millis(1_000, &flood)).iter().sum::<u64>();
            assert!(sum >= due * 96 / 100, "{sum} of {due}");
        }
    }
}

/// With equal parts of the pairs, the second sender would have half of its guarantee, and the
/// second receiver would get half of its own: 86 % of what is due in sum.
#[test]
fn a_pair_with_three_connections_has_three_parts() {
    let mut net = Net::new(2, 2);
    net.senders[1].flows[0] = 3;
    let due: Vec<u64> = fair(&[vec![1, 1], vec![3, 0]]).iter().flatten().copied().collect();
    assert_eq!(due, [HOSE / 4, HOSE * 3 / 4, HOSE / 4 * 3, 0]);
    let flood = vec![vec![HOSE; 2], vec![HOSE, 0]];
    net.millis(5_000, &flood);
    let sum = means(&net.millis(5_000, &flood)).iter().sum::<u64>();
    let due: u64 = due.iter().sum();
    assert!(sum >= due * 97 / 100, "{sum} of {due}");
    // When two of the connections end, the pairs have equal parts again.
    net.senders[1].flows[0] = 1;
    net.millis(5_000, &flood);
    let sum = means(&net.millis(5_000, &flood)).iter().sum::<u64>();
    assert!(sum <= HOSE * 3 / 2 * 104 / 100, "{sum}");
}

/// Workers may see the limits of a VM before the period has set the limits of all other VMs.
#[test]
fn the_first_pair_of_a_new_vm_has_a_limit_from_its_first_frame_on() {
    const VMS: u16 = 2_000;
    let terms = VmTerms { send: HOSE, receive: HOSE, headroom_permille: 1_000 };
    let of = |vm| (vm, TenantTerms { tenant: vm, terms, is_held: true });
    let vms: BTreeMap<u16, TenantTerms> = (0..VMS).map(of).collect();
    for round in 0..20 {
        let table = PairTable::with_limits(VMS.into(), 5, PairLimits::Guarantees);
        let begin = std::sync::Barrier::new(2);
        let sent = std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                begin.wait();
                while !table.is_measured(0) {
                    std::hint::spin_loop();
                }
                table.send(0, mac(1), FRAME, Nanos::from_secs(1))
            });
            begin.wait();
            GuaranteeControl::default().period_ends(&table, &vms, Nanos::from_millis(50));
            worker.join().unwrap()
        });
        // A pair without a limit asks nothing.
        assert!(matches!(sent, Sending::Ask(_)), "{sent:?} in round {round}");
    }
}
