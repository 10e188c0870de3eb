//! Implements a NIC, which connects the queues of a TAP to the queue pairs of a virtio-net device.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::uio::writev;

use super::counters::NicReport;
use super::delay::DelayLine;
use super::spec::NicSpec;
use super::{netns, tap};
use crate::driver::{
    DriverConfig, Features, MAX_SEGMENTS, QueuePair, RxFrame, SlotOrder, VNET_HDR_LEN, VirtioNet,
    VnetHdr,
};

/// Maximum number of frames that a queue moves in each direction in one turn of the endpoint's
/// loop.
const BURST: usize = 32;
/// Size in bytes of a slot for the virtio header, the Ethernet header and the largest IP packet, in
/// whole cache lines.
const BIG_SLOT: usize = (VNET_HDR_LEN + 18 + 65_535).next_multiple_of(64);
/// Size in bytes of a receive buffer if a frame may span several buffers.
const MERGED_BUFFER: usize = 16 << 10;
const FIRST_BACK_OFF: Duration = Duration::from_millis(20);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);

/// A TAP in a namespace, and the virtio-net device to which it is connected.
#[derive(Debug)]
pub(crate) struct Nic {
    spec: NicSpec,
    pub device: VirtioNet,
    pub taps: Vec<OwnedFd>,
    /// Whether each TAP queue may have a frame to read, in the order of the queues. An epoll event
    /// sets the flag of a queue, and EAGAIN clears the flag.
    pub readable: Vec<bool>,
    /// For each queue, the frames from the switch that wait for the NIC's delay.
    lines: Vec<DelayLine>,
    pub attached: bool,
    ever_attached: bool,
    back_off: Duration,
    next_try_ns: u64,
    counters: NicReport,
}

/// Returns the problem with a TAP that cannot be opened, and the remedy.
fn not_opened(spec: &NicSpec) -> String {
    match &spec.netns {
        Some(namespace) if !netns::path(namespace).exists() => {
            format!("there is no namespace {namespace}; add --create-netns, or correct `netns`")
        }
        _ => {
            let interface = &spec.interface;
            format!("the TAP {interface} cannot be opened; run as root, or choose another `if`")
        }
    }
}

impl Nic {
    /// Opens and configures the TAP, and prepares the virtio-net device. A NIC can be created while
    /// the switch is not running.
    pub fn new(spec: &NicSpec) -> anyhow::Result<Self> {
        let name = spec.name();
        let place = spec.netns.as_deref().map(netns::path);
        let taps = tap::open(place, &spec.interface, spec.queues)
            .with_context(|| format!("nic {name}: {}", not_opened(spec)))?;
        netns::configure(spec).with_context(|| format!("nic {name}"))?;
        let uso = taps.iter().all(tap::knows_uso);
        let device =
            VirtioNet::prepare(config(spec, uso)).with_context(|| format!("nic {name}"))?;
        let readable = vec![true; taps.len()];
        let lines = taps.iter().map(|_| DelayLine::new(spec.delay_us)).collect();
        Ok(Self {
            spec: spec.clone(),
            device,
            taps,
            readable,
            lines,
            attached: false,
            ever_attached: false,
            back_off: FIRST_BACK_OFF,
            next_try_ns: 0,
            counters: NicReport { name, ..NicReport::default() },
        })
    }

    pub fn name(&self) -> &str {
        &self.counters.name
    }

    pub fn ever_attached(&self) -> bool {
        self.ever_attached
    }

    /// Time of the next attempt to attach to the switch, in nanoseconds since the start; `None`
    /// while the NIC is attached.
    pub fn next_try_ns(&self) -> Option<u64> {
        (!self.attached).then_some(self.next_try_ns)
    }

    /// Checks whether the switch is still connected. Returns true if the switch has disconnected
    /// since the last check.
    pub fn check_gone(&mut self, now_ns: u64) -> bool {
        if !self.attached || self.device.is_connected() {
            return false;
        }
        // The namespace still receives frames that the old switch had delivered.
        while self.ring_to_tap(now_ns) > 0 {}
        self.attached = false;
        self.back_off = FIRST_BACK_OFF;
        self.next_try_ns = now_ns;
        tracing::info!(nic = self.name(), "the switch went away");
        true
    }

    /// Attaches to the switch if an attempt is due. Returns true if the call attached the NIC to
    /// the switch.
    pub fn try_attach(&mut self, now_ns: u64) -> anyhow::Result<bool> {
        if self.attached || now_ns < self.next_try_ns {
            return Ok(false);
        }
        self.next_try_ns = now_ns + crate::clock::nanos(self.back_off);
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        let moved = match self.device.try_reconnect() {
            Ok(Some(moved)) => moved,
            Ok(None) => return Ok(false),
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(nic = self.name(), "attaching failed: {error:#}");
                return Ok(false);
            }
        };
        let offloads = if self.spec.offloads { self.device.features() } else { Features::NONE };
        for tap in &self.taps {
            tap::set_offloads(tap, offloads)
                .with_context(|| format!("nic {}: setting TAP offloads", self.name()))?;
        }
        self.counters.reconnects += u64::from(self.ever_attached);
        self.counters.tx_resubmitted += moved.tx_frames;
        self.attached = true;
        self.ever_attached = true;
        self.back_off = FIRST_BACK_OFF;
        self.readable.fill(true);
        tracing::info!(nic = self.name(), features = %self.device.features(), "attached");
        Ok(true)
    }

    /// Moves one burst of frames in each direction on every queue. Returns the number of moved
    /// frames.
    pub fn turn(&mut self, now_ns: u64) -> usize {
        let late = self.lines_to_tap(now_ns);
        if !self.attached {
            return late;
        }
        late + self.ring_to_tap(now_ns) + self.tap_to_ring()
    }

    /// Time at which the next delayed frame leaves, in nanoseconds since the start; `None` if no
    /// frame is delayed.
    pub fn next_frame_ns(&self) -> Option<u64> {
        self.lines.iter().filter_map(DelayLine::next_ns).min()
    }

    fn lines_to_tap(&mut self, now_ns: u64) -> usize {
        let mut moved = 0;
        for (line, tap) in self.lines.iter_mut().zip(&self.taps) {
            while let Some(held) = line.pop(now_ns) {
                let written = nix::unistd::write(tap, &held.bytes);
                let len = held.bytes.len() - VNET_HDR_LEN;
                self.counters.count_written(written.is_ok(), len, held.gso);
                moved += 1;
            }
        }
        moved
    }

    fn tap_to_ring(&mut self) -> usize {
        let mut moved = 0;
        let queues = self.device.pairs_mut().iter_mut().zip(&self.taps);
        for ((pair, tap), readable) in queues.zip(&mut self.readable) {
            if *readable {
                moved += read_burst(pair, tap, readable, &mut self.counters);
            }
        }
        moved
    }

    fn ring_to_tap(&mut self, now_ns: u64) -> usize {
        let mut moved = 0;
        let counters = &mut self.counters;
        let queues = self.device.pairs_mut().iter_mut().zip(&self.taps);
        for ((pair, tap), line) in queues.zip(&mut self.lines) {
            moved += pair.rx.recv(BURST, |frame| {
                if !line.delays() {
                    write_frame(frame, tap, counters);
                } else if !line.push(frame, now_ns) {
                    counters.rx_refused += 1;
                }
            });
        }
        moved
    }

    /// Requests interrupts from the switch. If a transmit ring is full, the interrupt comes when
    /// many of its slots are free, like with Linux's driver. Returns false if a received frame or
    /// enough free slots are already available.
    pub fn arm(&mut self) -> bool {
        if !self.attached {
            return true;
        }
        let mut quiet = true;
        for (pair, readable) in self.device.pairs_mut().iter_mut().zip(&self.readable) {
            quiet &= pair.rx.arm();
            // If a TAP is still readable, it was not read, because the ring is full.
            if *readable {
                quiet &= pair.tx.arm_delayed();
            }
        }
        quiet
    }

    pub fn disarm(&mut self) {
        for pair in self.device.pairs_mut() {
            pair.rx.disarm();
            pair.tx.disarm();
        }
    }

    pub fn report(&mut self) -> NicReport {
        let mut report = self.counters.clone();
        report.attached = self.attached;
        report.features = self.device.features().to_string();
        for pair in self.device.pairs_mut() {
            let rx = pair.rx.counters();
            report.rx_bad += rx.bad + rx.bad_used;
        }
        report
    }
}

/// Returns the driver's configuration. `uso` tells whether the TAP knows large segments of UDP.
fn config(spec: &NicSpec, uso: bool) -> DriverConfig {
    let mut config = DriverConfig::new(&spec.socket);
    config.mode = spec.mode;
    config.wanted = Features::BASIC | Features::EVENT_IDX;
    config.queue_pairs = spec.queues;
    config.ring_size = spec.ring_size;
    let mtu_slot = (VNET_HDR_LEN + 18 + usize::from(spec.mtu)).next_multiple_of(64);
    if spec.offloads {
        config.wanted = config.wanted | Features::OFFLOADS;
        if uso {
            config.wanted = config.wanted | Features::USO;
        }
        config.tx_slot_bytes = BIG_SLOT;
        config.rx_buffer_bytes = if spec.mergeable { MERGED_BUFFER } else { BIG_SLOT };
    } else {
        config.tx_slot_bytes = mtu_slot.max(DriverConfig::BUFFER_BYTES);
        config.rx_buffer_bytes = mtu_slot.max(DriverConfig::BUFFER_BYTES);
    }
    if spec.mergeable {
        config.required = Features::MRG_RXBUF;
    } else {
        config.wanted = config.wanted.without(Features::MRG_RXBUF);
    }
    if spec.packed {
        config.wanted = config.wanted | Features::RING_PACKED;
    }
    // The slot that was used last is still in the cache. If the driver used all 256 big slots in
    // turn, none would be.
    config.slot_order = SlotOrder::Lifo;
    config
}

/// Reads at most one burst of frames from the TAP into transmit slots. Returns the number of
/// frames.
fn read_burst(
    pair: &mut QueuePair,
    tap: &OwnedFd,
    readable: &mut bool,
    counters: &mut NicReport,
) -> usize {
    let tx = &mut pair.tx;
    tx.reclaim(|_| ());
    let mut moved = 0;
    while moved < BURST {
        let Some(slot) = tx.take() else {
            counters.tx_ring_full += 1;
            break;
        };
        let bytes = tx.slot_mut(slot);
        let len = match nix::unistd::read(tap, bytes) {
            Ok(len) if len > VNET_HDR_LEN => len - VNET_HDR_LEN,
            Ok(_) => {
                tx.give_back(slot);
                continue;
            }
            Err(error) => {
                // The error is EAGAIN, or the interface is down. epoll reports when the TAP becomes
                // readable.
                *readable = error == Errno::EINTR;
                tx.give_back(slot);
                break;
            }
        };
        // The TAP may mark a checksum as verified, but a driver must not.
        bytes[0] &= VnetHdr::NEEDS_CSUM;
        let tso = bytes[1] != VnetHdr::GSO_NONE;
        if tx.push_prepared(slot, len).is_err() {
            tx.give_back(slot);
            break;
        }
        counters.tx_frames += 1;
        counters.tx_bytes += len as u64;
        counters.tx_tso_frames += u64::from(tso);
        moved += 1;
    }
    if moved > 0 {
        tx.publish();
    }
    moved
}

/// Writes a frame from its receive buffers to the TAP.
fn write_frame(frame: &RxFrame<'_>, tap: &OwnedFd, counters: &mut NicReport) {
    let mut parts = [IoSlice::new(&[]); MAX_SEGMENTS];
    for (part, buffer) in parts.iter_mut().zip(frame.buffers()) {
        *part = IoSlice::new(buffer);
    }
    let written = writev(tap, &parts[..frame.buffers().len()]).is_ok();
    counters.count_written(written, frame.len(), frame.hdr.is_gso());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_that_cannot_be_opened_has_a_remedy() {
        let problem = |text: &str| not_opened(&text.parse().unwrap());
        let missing = "there is no namespace none-such; add --create-netns, or correct `netns`";
        assert_eq!(problem("socket=/a,netns=none-such"), missing);
        let used = "the TAP up9 cannot be opened; run as root, or choose another `if`";
        assert_eq!(problem("socket=/a,if=up9"), used);
    }
}
