//! Sends frames with unfinished checksums or segmentation to a VM without these offloads, so that
//! the switch must finish them.

use std::path::Path;
use std::time::Duration;

use super::rig::Setting;
use penstock_guest::clock;
use penstock_guest::driver::{
    DriverConfig, Features, SocketMode, VNET_HDR_LEN, VirtioNet, VnetHdr,
};
use penstock_guest::load::run_queue_wait_ns;
use penstock_qos::cost_model::RingKind;

const ETH: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
/// Payload of a segment in a full-size frame, in bytes.
const MSS: usize = 1446;
/// Number of frames that the switch cuts from one segmentation request.
pub(super) const SEGMENTS: usize = 8;
/// Number of frames that the VM publishes at once.
const BURST: usize = 32;
/// Number of bursts between two readings of the clock.
const TURNS: u32 = 8;

/// Kind of the frames that the VM sends. All frames of a measurement are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Complete frames; the number is the frame size in bytes, including the FCS.
    Plain(usize),
    /// Frames with an unfinished checksum, which the switch completes; the number is the frame size
    /// in bytes.
    Checksum(usize),
    /// Segmentation requests of [`SEGMENTS`] full-size frames each.
    Segments,
}

const OFFLOADS: &str = "vhost-user.offloads = { csum = true, tso = true }";

/// Returns a setting with offloads, for a receiver that negotiates no offload.
pub(super) fn setting() -> Setting {
    let mut setting = Setting::plain("offload", RingKind::Split, String::new());
    setting.keys = [OFFLOADS, OFFLOADS, ""];
    setting
}

#[derive(Debug)]
pub(super) struct Pair {
    tx: VirtioNet,
    rx: VirtioNet,
    frame: usize,
    /// Number of frames that the VM publishes at once. The segments of one burst do not fill the
    /// receiver's ring.
    burst: usize,
}

impl Pair {
    /// Waits for the switch at the sockets in `dir`.
    pub fn connect(dir: &Path) -> anyhow::Result<Self> {
        let device = |name: &str, offloads: bool| {
            let mut config = DriverConfig::new(dir.join(name));
            config.mode = SocketMode::Server;
            config.wait = Duration::from_secs(20);
            if offloads {
                config.wanted = config.wanted | Features::CSUM | Features::HOST_TSO4;
                config.tx_slot_bytes = 16 * 1024;
            } else {
                config.wanted = config.wanted.without(Features::OFFLOADS);
            }
            VirtioNet::connect(config)
        };
        // The switch connects to both sockets, in any order.
        let rx = device("v0.sock", false)?;
        let tx = device("v1.sock", true)?;
        Ok(Self { tx, rx, frame: 0, burst: BURST })
    }

    /// Writes a frame of kind `kind` into every slot of the sender's ring. During the call, no
    /// frame may be in flight.
    pub fn offer(&mut self, kind: Kind) {
        let (frame, header) = make(kind);
        let tx = self.tx.tx();
        for slot in 0..tx.slot_count() {
            let bytes = tx.prepare(slot);
            bytes[..VNET_HDR_LEN].copy_from_slice(&header.to_bytes());
            bytes[VNET_HDR_LEN..VNET_HDR_LEN + frame.len()].copy_from_slice(&frame);
        }
        self.frame = frame.len();
        self.burst = if kind == Kind::Segments { BURST / SEGMENTS } else { BURST };
    }

    /// Sends for `secs` seconds, then waits until no frame is in flight. Returns this thread's wait
    /// for its core in nanoseconds.
    pub fn drive(&mut self, secs: f64) -> anyhow::Result<u64> {
        let (began, waited) = (clock::now(), run_queue_wait_ns());
        while began.elapsed().as_secs_f64() < secs {
            for _ in 0..TURNS {
                self.turn()?;
            }
        }
        let waited = run_queue_wait_ns() - waited;
        let began = clock::now();
        let mut quiet = began;
        while quiet.elapsed() < Duration::from_millis(4) && began.elapsed().as_secs() < 2 {
            let moved = self.rx.rx().recv(64, |_| ());
            let tx = self.tx.tx();
            tx.reclaim(|_| ());
            if moved + tx.outstanding() > 0 {
                quiet = clock::now();
            }
        }
        Ok(waited)
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let tx = self.tx.tx();
        tx.reclaim(|_| ());
        // One burst is in flight at a time, so that the receiver's ring has room.
        if tx.outstanding() == 0 {
            for _ in 0..self.burst {
                let Some(slot) = tx.take() else { break };
                tx.push_prepared(slot, self.frame)?;
            }
            tx.publish();
        }
        while self.rx.rx().recv(64, |_| ()) > 0 {}
        Ok(())
    }
}

/// Returns a TCP frame and its header. The TCP frame is broadcast, so the switch need not learn an
/// address.
fn make(kind: Kind) -> (Vec<u8>, VnetHdr) {
    let headers = ETH + IP + TCP;
    let len = match kind {
        Kind::Plain(size) | Kind::Checksum(size) => (size - 4).max(headers),
        Kind::Segments => headers + SEGMENTS * MSS,
    };
    let mut frame = vec![0x5a; len];
    frame[..6].copy_from_slice(&[0x52, 0x54, 0, 0, 5, 1]);
    frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0, 5, 2]);
    frame[12..14].copy_from_slice(&[8, 0]);
    let total = u16::try_from(len - ETH).unwrap_or(u16::MAX).to_be_bytes();
    let ip = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    frame[ETH..ETH + IP].copy_from_slice(&ip);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
    frame[ETH + 10..ETH + 12].copy_from_slice(&sum.to_be_bytes());
    let tcp = &mut frame[ETH + IP..headers];
    tcp.fill(0);
    tcp[..4].copy_from_slice(&[4, 0, 0, 9]);
    tcp[12..14].copy_from_slice(&[0x50, 0x10]);
    let checksum = VnetHdr {
        flags: VnetHdr::NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHdr::default()
    };
    let header = match kind {
        Kind::Plain(_) => VnetHdr::default(),
        Kind::Checksum(_) => checksum,
        Kind::Segments => VnetHdr {
            gso_type: VnetHdr::GSO_TCPV4,
            hdr_len: 54,
            gso_size: u16::try_from(MSS).unwrap_or(0),
            ..checksum
        },
    };
    (frame, header)
}
