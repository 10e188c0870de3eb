//! Tests of VMs that press outputs with `fair-share` and `excess = "hold"`. The switch loses no
//! frame, keeps the order of each VM's frames to each output, and lets frames for other outputs
//! pass.

use penstock_dataplane::port::memory_queue::MemoryFrame;
use penstock_dataplane::queue::{Order, Pacing, QueueHome, QueueTerms, ShareTerms};
use penstock_qos::fair_share::Bound;
use penstock_sim::{Costs, PortHandle, Rng, SinkSpec, World, udp_frame};
use penstock_units::{BitsPerSecond, MacAddr, Nanos, TscRate};

const RATE: TscRate = TscRate::from_hz(2_000_000_000);
/// Frames in a VM's transmit ring.
const RING: usize = 256;
const STEP: Nanos = Nanos::from_micros(100);
/// Frame lengths of random traffic, in bytes without FCS.
const LENGTHS: [usize; 5] = [60, 600, 1_514, 9_000, 65_000];

/// VMs that send numbered frames to outputs.
struct Bed {
    world: World,
    now: Nanos,
    outputs: Vec<PortHandle>,
    vms: Vec<PortHandle>,
    /// Number of frames that each VM put into its ring for each output.
    sent: Vec<Vec<u64>>,
    /// Number of frames of each VM that arrived at each output.
    got: Vec<Vec<u64>>,
}

fn mac(port: usize) -> MacAddr {
    World::mac_of(u16::try_from(port).expect("few ports"))
}

fn fair(mbps: u64, bytes: u64, frames: u32) -> QueueTerms {
    QueueTerms {
        order: Order::FairShare,
        pacing: Pacing::Link(BitsPerSecond(mbps * 1_000_000)),
        bound: Bound { bytes, ..Bound::default() },
        frames,
        ..QueueTerms::default()
    }
}

impl Bed {
    /// Creates a bed with outputs and `vms` VMs, each of a tenant of its own. An output without
    /// terms has no queue.
    fn new(outputs: &[Option<QueueTerms>], vms: usize) -> Self {
        let ports = outputs.len() + vms;
        let mut world = World::new(RATE, Costs::EXAMPLE, ports, 7);
        let output = |terms: &Option<QueueTerms>| {
            let port = world.add_vm(1, 1_024, SinkSpec::default()).expect("possible");
            if let Some(terms) = *terms {
                let home = QueueHome::new(terms, ports, vms + 2);
                world.set_policy(port, |policy| policy.queue = Some(home));
            }
            world.record(port);
            world.introduce(port);
            port
        };
        let outputs: Vec<_> = outputs.iter().map(output).collect();
        let vm = |tenant: usize| {
            let port = world.add_vm(1, RING, SinkSpec::default()).expect("possible");
            world.set_policy(port, |policy| {
                policy.tenant = Some(u16::try_from(tenant).expect("few tenants"));
                policy.share = ShareTerms::default();
            });
            port
        };
        let vms: Vec<_> = (0..vms).map(vm).collect();
        let none = vec![vec![0; outputs.len()]; vms.len()];
        let (sent, got) = (none.clone(), none);
        let mut bed = Self { world, now: Nanos::ZERO, outputs, vms, sent, got };
        (0..20).for_each(|_| bed.step());
        bed
    }

    /// Puts a frame of `len` bytes into a VM's ring. Returns false if the ring is full.
    fn offer(&mut self, vm: usize, to: usize, len: usize) -> bool {
        let (source, target) = (mac(self.outputs.len() + vm), mac(to));
        let flow = u16::try_from(vm + 1).expect("few VMs");
        let frame = udp_frame(source, target, len, flow, self.sent[vm][to]);
        let taken = self.world.offer(self.vms[vm], MemoryFrame::plain(frame));
        self.sent[vm][to] += u64::from(taken);
        taken
    }

    /// Advances the time by [`STEP`], and checks that each frame is the next one of its VM and its
    /// output.
    fn step(&mut self) {
        self.now += STEP;
        self.world.run_until(self.now);
        for (to, port) in self.outputs.iter().enumerate() {
            for arrival in self.world.take_arrivals(*port) {
                // Flow 0 has the frames by which the switch learns addresses.
                let Some(vm) = usize::from(arrival.flow).checked_sub(1) else { continue };
                assert_eq!(arrival.sequence, self.got[vm][to], "VM {vm} to output {to}");
                self.got[vm][to] += 1;
            }
        }
    }

    /// Fills all rings for `steps` steps with frames of random lengths for random outputs.
    fn flood(&mut self, rng: &mut Rng, steps: usize, lengths: &[usize]) {
        let below = |rng: &mut Rng, most: usize| {
            usize::try_from(rng.below(most as u64)).expect("below a usize")
        };
        for _ in 0..steps {
            for vm in 0..self.vms.len() {
                while self.world.unsent(self.vms[vm]) < RING {
                    let (to, len) = (below(rng, self.outputs.len()), below(rng, lengths.len()));
                    if !self.offer(vm, to, lengths[len]) {
                        break;
                    }
                }
            }
            self.step();
        }
    }

    /// Runs until all frames have arrived, and checks that the switch lost none.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            if self.sent == self.got {
                break;
            }
            self.step();
        }
        assert_eq!(self.sent, self.got, "every frame arrives");
        for vm in &self.vms {
            let port = self.world.port(*vm);
            assert_eq!((port.dropped(), port.unaccounted(), port.queued), (0, 0, 0), "{port:?}");
        }
        for output in &self.outputs {
            assert_eq!(self.world.port(*output).tx_queued, 0);
        }
    }

    fn held_back(&self) -> u64 {
        self.vms.iter().map(|vm| self.world.port(*vm).held_back).sum()
    }
}

/// A VM has as many bytes on their way to the uplink as the default window of Linux.
#[test]
fn a_vms_frames_for_a_neighbour_pass_while_it_presses_an_uplink() {
    const WINDOW: u64 = (6 << 20) / 65_000;
    let mut bed = Bed::new(&[Some(fair(100, 8 << 20, 4_096)), None], 2);
    let (uplink, neighbour) = (0, 1);
    for step in 0..6_000 {
        while bed.sent[0][uplink] - bed.got[0][uplink] < WINDOW {
            assert!(bed.offer(0, uplink, 65_000));
        }
        // While the worker takes the whole window, the ring may be full of large frames.
        if step >= 100 {
            (0..4).for_each(|_| assert!(bed.offer(0, neighbour, 1_514)));
        }
        // Another VM's frames do not wait behind the window.
        if step % 200 == 0 {
            assert!(bed.offer(1, uplink, 100));
        }
        assert!(bed.sent[1][uplink] - bed.got[1][uplink] <= 3, "in step {step}");
        bed.step();
    }
    let [sent, got] = [&bed.sent, &bed.got].map(|frames| frames[0][neighbour]);
    assert!(got * 100 >= sent * 99, "{got} of {sent}");
    // 600 ms of 100 Mbit/s.
    assert!(bed.got[0][uplink] * 65_024 * 8 >= 58_000_000, "{:?}", bed.got);
    assert_eq!(bed.held_back(), 0);
    bed.drain();
}

#[test]
fn a_flood_is_held_at_the_limit_and_goes_on_when_there_is_room() {
    // The limit is 64 frames.
    let mut bed = Bed::new(&[Some(fair(10, 64 * 1_024, 4_096)), None], 1);
    let most = |bed: &Bed| bed.world.port(bed.outputs[0]).tx_queued;
    for _ in 0..3_000 {
        while bed.offer(0, 0, 1_000) {}
        bed.step();
        // A batch more, and the frame that leaves next.
        assert!(most(&bed) <= 64 + 32 + 1, "{}", most(&bed));
    }
    assert!(most(&bed) >= 48 && bed.held_back() > 5, "{}", bed.held_back());
    bed.drain();
    // The worker polls the VM again.
    assert!(bed.offer(0, 1, 1_000) && bed.offer(0, 0, 1_000));
    bed.drain();
}

#[test]
fn vms_that_press_1_to_8_outputs_lose_nothing() {
    for outputs in 1..=8 {
        let mut rng = Rng::new(outputs as u64);
        for (bytes, frames) in [(2_048, 32), (262_144, 64), (8 << 20, 4_096)] {
            let mut bed = Bed::new(&vec![Some(fair(1_000, bytes, frames)); outputs], 3);
            bed.flood(&mut rng, 30, &LENGTHS);
            assert!(bytes > 2_048 || bed.held_back() > 0, "{outputs} outputs, {bytes} bytes");
            bed.drain();
        }
    }
}

#[test]
fn a_hundred_vms_that_press_8_outputs_lose_nothing() {
    let mut bed = Bed::new(&[Some(fair(100, 8 << 20, 256)); 8], 100);
    bed.flood(&mut Rng::new(3), 30, &LENGTHS[..3]);
    assert!(bed.held_back() > 0);
    bed.drain();
}

/// All sequences of four frames, each short or long and for one of two outputs, where one frame
/// suffices to press an output.
#[test]
fn each_sequence_of_frames_passes_outputs_with_room_for_one_frame() {
    for sequence in 0..256_usize {
        let mut bed = Bed::new(&[Some(fair(100, 1, 1)); 2], 1);
        for place in 0..4 {
            let frame = sequence >> (2 * place);
            assert!(bed.offer(0, frame & 1, if frame & 2 == 0 { 60 } else { 9_000 }));
        }
        bed.drain();
    }
}
