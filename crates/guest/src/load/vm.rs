//! Implements a VM of the load generator, which consists of a device, a sender and a sink.

use std::time::Duration;

use penstock_dataplane::tsc::{CycleCounter as _, Tsc};

use super::frame::{FrameMaker, announcement};
use super::pacer::Pacer;
use super::sink::{Arrived, Sink, SinkCounters};
use super::spec::{LoadSpec, Phase, VmSpec};
use crate::driver::{DriverConfig, DriverError, VNET_HDR_LEN, VirtioNet, VnetHdr};

/// Number of slots between the current slot and the prefetched slot. The prefetch fetches cache
/// lines from the cache of the switch's core.
const SLOTS_AHEAD: usize = 8;
/// Number of bytes at the start of a frame that are written without `touch`.
const HEADERS: usize = 46;

/// Counters of the frames that one VM of the load generator sent and received. A report has the
/// differences between two readings of the VM's counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct VmCounters {
    /// Number of frames that the VM put into the ring.
    pub tx_frames: u64,
    /// Number of bytes that the VM put into the ring, without FCS.
    pub tx_bytes: u64,
    /// Number of turns in which a frame was due but the ring was full.
    pub tx_ring_full: u64,
    /// Counters of the frames that the VM received.
    pub sink: SinkCounters,
    /// Number of times that the VM reconnected to the switch.
    pub reconnects: u64,
}

#[derive(Debug)]
struct Sender {
    maker: FrameMaker,
    pacer: Pacer,
    phases: std::vec::IntoIter<Phase>,
    next: Option<Phase>,
}

#[derive(Debug)]
pub struct LoadVm {
    spec: VmSpec,
    device: VirtioNet,
    sender: Option<Sender>,
    sink: Sink,
    counters: VmCounters,
}

impl LoadVm {
    /// Attaches the VM with index `number` in `spec.vms` to the switch.
    pub fn connect(spec: &LoadSpec, number: usize) -> Result<Self, DriverError> {
        let vm = spec.vms[number].clone();
        let mut config = DriverConfig::new(&vm.socket);
        config.mode = vm.mode;
        config.wanted = vm.wanted;
        config.ring_size = vm.ring_size;
        config.wait = Duration::try_from_secs_f64(spec.wait_secs).unwrap_or_default();
        let slot = (vm.largest_frame() + VNET_HDR_LEN).next_multiple_of(64);
        config.tx_slot_bytes = slot.max(DriverConfig::BUFFER_BYTES);
        let mut device = VirtioNet::connect(config)?;
        let targets = VmSpec::targets(number, &spec.vms);
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        let sender = (!targets.is_empty()).then(|| {
            let mut phases = vm.phases.clone().into_iter();
            Sender {
                maker: FrameMaker::new(&vm, &targets, number, spec.touch),
                pacer: Pacer::new(vm.rate, 0),
                next: phases.next(),
                phases,
            }
        });
        device.rx().set_reads_bodies(spec.touch);
        let tx = device.tx();
        for i in 0..tx.slot_count() {
            let slot = tx.prepare(i);
            slot[..VNET_HDR_LEN].copy_from_slice(&VnetHdr::default().to_bytes());
            FrameMaker::prepare(&mut slot[VNET_HDR_LEN..]);
        }
        let mut sink = Sink::new(spec.vms.iter().map(|v| v.mac.0).collect(), spec.touch);
        if !spec.touch {
            sink.expect_times(spec.vms.iter().map(|v| v.stamped).collect());
        }
        if vm.interrupts {
            device.rx().arm();
        }
        Ok(Self { spec: vm, device, sender, sink, counters: VmCounters::default() })
    }

    /// Sends a gratuitous ARP request, so that the switch learns the VM's port.
    pub fn announce(&mut self) -> Result<(), DriverError> {
        let frame = announcement(&self.spec);
        let tx = self.device.tx();
        tx.reclaim(|_| ());
        if let Some(slot) = tx.take() {
            tx.slot_mut(slot)[VNET_HDR_LEN..VNET_HDR_LEN + frame.len()].copy_from_slice(&frame);
            tx.push(slot, &VnetHdr::default(), frame.len())?;
            // `wait_sent` restores the prepared body of this slot.
            tx.publish();
            self.wait_sent();
        }
        Ok(())
    }

    /// Waits up to 200 ms until the switch has read the gratuitous ARP request, and then restores
    /// the prepared bodies of the transmit slots.
    fn wait_sent(&mut self) {
        let start = crate::clock::now();
        let tx = self.device.tx();
        while tx.outstanding() > 0 && start.elapsed() < Duration::from_millis(200) {
            tx.reclaim(|_| ());
        }
        if tx.outstanding() == 0 {
            for i in 0..tx.slot_count() {
                FrameMaker::prepare(&mut tx.prepare(i)[VNET_HDR_LEN..]);
            }
        }
    }

    /// Changes the VM's traffic immediately. A change of traffic does not affect a VM that only
    /// receives.
    pub fn change(&mut self, phase: &Phase) {
        if let Some(sender) = &mut self.sender {
            sender.apply(&self.spec, phase);
        }
    }

    /// Restarts pacing at `now_ns`, so that the time since the last turn earns no credit.
    pub fn restart_pacing(&mut self, now_ns: u64) {
        if let Some(sender) = &mut self.sender {
            sender.pacer.restart(now_ns);
        }
    }

    /// Reads the used entries of the transmit ring. Returns the number of frames that the switch
    /// has not returned.
    pub fn outstanding(&mut self) -> usize {
        let tx = self.device.tx();
        tx.reclaim(|_| ());
        tx.outstanding()
    }

    /// Sends a burst and receives a burst. Returns the number of sent and received frames together.
    pub fn turn(&mut self, now_ns: u64, burst: usize) -> Result<usize, DriverError> {
        Ok(self.send_turn(now_ns, burst)? + self.receive())
    }

    /// Sends a burst of frames without receiving frames. Returns the number of sent frames.
    pub fn send_turn(&mut self, now_ns: u64, burst: usize) -> Result<usize, DriverError> {
        match &mut self.sender {
            None => Ok(0),
            Some(_) => self.send(now_ns, burst),
        }
    }

    /// Receives the frames that have arrived, at most 64.
    pub fn receive(&mut self) -> usize {
        self.receive_up_to(64)
    }

    /// Receives the frames that have arrived, at most `most` frames.
    pub fn receive_up_to(&mut self, most: usize) -> usize {
        let sink = &mut self.sink;
        sink.look(Tsc.now().0);
        let rx = self.device.rx();
        let received = rx.recv(most, |frame| sink.see(frame));
        if received > 0 && self.spec.interrupts {
            rx.arm();
        }
        received
    }

    /// Returns the frames received from each VM of the run, in the order of the VMs' numbers.
    pub fn arrived(&self) -> impl Iterator<Item = Arrived> + '_ {
        self.sink.arrived()
    }

    /// Calls `each` for every transit time of a stamped frame that was recorded since the last
    /// call. A transit time consists of the sender's number and a duration in TSC cycles.
    pub fn drain_times(&mut self, each: impl FnMut(usize, u64)) {
        self.sink.drain_times(each);
    }

    /// Stops recording the transit times of frames that were sent before TSC value `cycles`.
    pub fn forget_times_before(&mut self, cycles: u64) {
        self.sink.forget_times_before(cycles);
    }

    fn send(&mut self, now_ns: u64, burst: usize) -> Result<usize, DriverError> {
        let Some(sender) = &mut self.sender else { return Ok(0) };
        while let Some(phase) = sender.next.take_if(|p| p.at_secs * 1e9 <= ns_f64(now_ns)) {
            sender.apply(&self.spec, &phase);
            sender.next = sender.phases.next();
        }
        sender.pacer.advance(now_ns, burst);
        if self.spec.stamped {
            sender.maker.stamp = Some(Tsc.now().0);
        }
        let tx = self.device.tx();
        if tx.free_slots() < burst {
            tx.reclaim(|_| ());
        }
        let touch = sender.maker.touches();
        let mut sent = 0;
        while sent < burst {
            let size = sender.maker.next_size();
            if !sender.pacer.due(size) {
                break;
            }
            tx.prefetch(SLOTS_AHEAD, if touch { usize::from(size) } else { HEADERS });
            let Some(slot) = tx.take() else {
                self.counters.tx_ring_full += 1;
                break;
            };
            sender.pacer.pay(size);
            let len = sender.maker.write(&mut tx.slot_mut(slot)[VNET_HDR_LEN..]);
            tx.push_prepared(slot, len)?;
            self.counters.tx_bytes += len as u64;
            sent += 1;
        }
        if sent > 0 {
            tx.publish();
            self.counters.tx_frames += sent as u64;
        }
        if self.spec.kicks {
            tx.kick_now();
        }
        Ok(sent)
    }

    /// If the switch has disconnected, tries once to reconnect.
    pub fn keep_connected(&mut self) -> Result<(), DriverError> {
        if self.device.is_connected() {
            return Ok(());
        }
        self.receive();
        match self.device.try_reconnect() {
            Ok(Some(_)) => {
                self.counters.reconnects += 1;
                self.announce()
            }
            Ok(None) => Ok(()),
            // If the switch died during the handshake, the VM tries again later. If the switch
            // lacks features, a retry would not help.
            Err(DriverError::Protocol { .. } | DriverError::Os { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the names of the features that the VM and the switch negotiated.
    pub fn features(&self) -> String {
        self.device.features().to_string()
    }

    pub fn counters(&mut self) -> VmCounters {
        let mut sink = self.sink.counters();
        let rx = self.device.rx().counters();
        sink.bad += rx.bad + rx.bad_used;
        VmCounters { sink, ..self.counters }
    }
}

impl Sender {
    fn apply(&mut self, vm: &VmSpec, phase: &Phase) {
        if let Some(rate) = phase.rate {
            self.pacer.set_rate(rate);
        }
        if let Some(sizes) = &phase.sizes {
            self.maker.set_sizes(vm, sizes);
        }
        if let Some(flows) = phase.flows {
            self.maker.set_flows(flows);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a run takes far less than 2^52 ns")]
fn ns_f64(ns: u64) -> f64 {
    ns as f64
}
