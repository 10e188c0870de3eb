//! Live experiment for VM jitter's Fig. 8: an RTP stream from a shaped VM, captured at the
//! receiver.
//!
//! # Problem
//!
//! In the simulation, frames leave exactly when they are due. A real sender wakes up late and
//! shares its core.
//!
//! # Source
//!
//! The experiment replays VM jitter §V-B, Fig. 8. RFC 2250 §2 defines RTP of transport streams: the
//! timestamp is the time at which the first byte is due. ISO/IEC 13818-1 §2.4.3.5 defines clock
//! references.
//!
//! # Approach
//!
//! ffmpeg makes a video, and this module rewrites the video's clock references. One frame carries
//! seven packets of the video. With the new clock references, the frames are due at the times of
//! the simulated stream with the same random seed. The due times of the frames are slightly
//! stretched, so that the mean rate with FCS equals the limit.
//!
//! GStreamer sends the video from the VM's namespace according to the clock references, as VLC
//! does. GStreamer sends each frame when it is due, and the frame's timestamp is its due time.
//! Video players other than VLC and GStreamer send a whole picture at once with one timestamp.
//! Sending a whole picture at once causes 10 ms of jitter with any shaper.
//!
//! Jitter is calculated as in RFC 3550, from the kernel's times of arrival in the receiver's
//! namespace. If tshark is installed, the report also has the mean jitter that tshark finds in the
//! same capture (`tshark_jitter_ms_mean`).
//!
//! # Cost
//!
//! A run of the experiment takes four and a half minutes: the stream is measured from a guest
//! without offloads and from a guest with the defaults of Linux.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use penstock_units::Nanos;
use serde_json::json;

use super::capture::{Capture, Captured};
use super::needs::needs;
use super::shaped::{Guest, NET, NET_PLACE, VM, prompt_plan, shape, waited, with_both};
use super::stage::Stage;
use crate::evidence::{Context, Outcome};
use crate::jitter::shaper::{Kind, RATE};
use crate::jitter::stream::{CLOCK, FRAME, Received, SECS, conclude, stream};
use crate::rig::plan::Plan;
use crate::rig::platform;
use penstock_guest::bed::Bed;
use penstock_guest::bed::process::ask;

/// Length of the FCS in bytes, which the shaper counts.
const FCS: u64 = 4;
/// Length of a packet of an MPEG transport stream, in bytes.
const PACKET: usize = 188;
const PACKETS: usize = 7;
/// Frequency of the MPEG transport stream's clock references in kHz.
const REFERENCE_KHZ: u64 = 27_000;
pub(super) const PORT: u16 = 5_004;
/// Interval at which the run checks whether frames still leave. The interval is longer than the
/// refill period of a token bucket.
const QUIET: Duration = Duration::from_millis(200);
/// Maximum time that the player may take in addition to the video's length.
const LATE: Duration = Duration::from_secs(20);

/// Runs the live experiment of VM jitter's Fig. 8.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    needs_rtp()?;
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    outcome.note("rate_bps", RATE.0);
    outcome.note("frame_bytes", FRAME);
    with_both(&mut outcome, |guest| measure(context, &bed, guest))?;
    Ok(outcome)
}

/// Measures the stream with both shapers, from a guest of the given kind.
fn measure(context: &Context<'_>, bed: &Bed, guest: Guest) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::default();
    let due = due(context.seed, context.live.secs);
    let (name, from) = if guest == Guest::Plain { ("rtp", 0.0) } else { ("rtp-default", 0.5) };
    let mut stage = Stage::start(bed, name, &guest.of(prompt_plan()))?;
    context.progress(from, "a video");
    let video = video(stage.dir(), &due)?;
    let mut both = Vec::new();
    for (kind, done) in Kind::BOTH.into_iter().zip([0.0, 0.25]) {
        context.progress(from + done, kind.name());
        shape(&stage, kind, RATE)?;
        let ((capture, frames), wait) =
            waited(&mut stage, |stage| play(bed, stage, &video, due.len()))?;
        outcome.note(&format!("{} worker_wait_pct", kind.name()), wait);
        let received = received(&frames)?;
        anyhow::ensure!(
            received.packets() * 2 > due.len(),
            "of {} packets, only {} arrived",
            due.len(),
            received.packets()
        );
        outcome.note(&format!("{} packets", kind.name()), received.packets());
        outcome.note(&format!("{} mbps", kind.name()), mbps(&frames));
        let beside = tshark(&capture).unwrap_or_else(|error| json!(format!("{error:#}")));
        outcome.note(&format!("{} tshark_jitter_ms_mean", kind.name()), beside);
        both.push(received);
    }
    if let [bucket, smooth] = &both[..] {
        conclude(&mut outcome, [bucket, smooth]);
    }
    Ok(outcome)
}

/// Returns an error if a program or plugin that [`video`] or [`play`] needs is not installed.
pub(super) fn needs_rtp() -> anyhow::Result<()> {
    for (program, package) in [
        ("ffmpeg", "ffmpeg"),
        ("gst-launch-1.0", "gstreamer1.0-tools"),
        ("gst-inspect-1.0", "gstreamer1.0-tools"),
        ("tcpdump", "tcpdump"),
    ] {
        needs(program, package)?;
    }
    for (element, package) in
        [("rtpmp2tpay", "good"), ("udpsink", "good"), ("udpsrc", "good"), ("tsparse", "bad")]
    {
        ask(Command::new("gst-inspect-1.0").args(["--exists", element])).with_context(|| {
            format!(
                "GStreamer has no {element}; install Debian's package \
                 gstreamer1.0-plugins-{package}, or run `scripts/setup.sh bench`"
            )
        })?;
    }
    Ok(())
}

/// Returns the times at which the stream's frames are due. The intervals of the simulated stream
/// are stretched, because a frame of the live stream also has an FCS.
pub(super) fn due(seed: u64, secs: Option<f64>) -> Vec<Nanos> {
    let until = secs.map_or(Nanos::from_secs(SECS), |secs| {
        Nanos(u64::try_from(Duration::from_secs_f64(secs).as_nanos()).unwrap_or(u64::MAX))
    });
    let frame = u64::from(FRAME);
    let due = stream(seed).into_iter().map(|(due, _)| Nanos(due.0 * (frame + FCS) / frame));
    due.take_while(|due| *due < until).collect()
}

/// Makes a video with frames that are due at the times `due`, and returns the path of the video.
pub(super) fn video(dir: &Path, due: &[Nanos]) -> anyhow::Result<PathBuf> {
    let file = dir.join("video.ts");
    let last = due.last().context("a stream of no packets")?;
    // The video is a little longer than needed, and is cut later.
    let secs = (last.0 / 1_000_000_000 * 11 / 10 + 3).to_string();
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-y", "-f", "lavfi", "-i", "testsrc2=size=352x288:rate=25"]);
    command.args(["-t", &secs, "-c:v", "mpeg2video", "-b:v", "1750k", "-minrate", "1750k"]);
    command.args(["-maxrate", "1750k", "-bufsize", "360k", "-g", "12"]);
    command.args(["-f", "mpegts", "-muxrate", "1916k", "-pcr_period", "20"]).arg(&file);
    ask(&mut command).context("making a video")?;
    let mut stream = std::fs::read(&file).context("reading the video")?;
    set_clock(&mut stream, due).context("the video is too short or has no clock")?;
    std::fs::write(&file, stream).context("writing the video")?;
    Ok(file)
}

/// Sets the clock references of a transport stream so that its frame number `i` is due at `due[i]`.
/// The last time in `due` is the end of the last frame, and the stream is cut at this time. Returns
/// `None` if the stream is too short or has no clock references.
fn set_clock(stream: &mut Vec<u8>, due: &[Nanos]) -> Option<()> {
    let frames = due.len().checked_sub(1)?;
    let bytes = frames * PACKETS * PACKET;
    if stream.len() < bytes {
        return None;
    }
    stream.truncate(bytes);
    let mut first = None;
    for (number, packet) in stream.chunks_exact_mut(PACKET).enumerate() {
        // Skips packets without a clock reference in their adaptation field.
        if packet[3] & 0x20 == 0 || packet[4] < 7 || packet[5] & 0x10 == 0 {
            continue;
        }
        let reference: &mut [u8; 6] = (&mut packet[6..12]).try_into().ok()?;
        let first = *first.get_or_insert_with(|| clock(*reference));
        let (frame, place) = (number / PACKETS, number as u64 % PACKETS as u64);
        let gap = due[frame + 1].0 - due[frame].0;
        let nanos = due[frame].0 + gap * place / PACKETS as u64;
        *reference = reference_of(first + nanos * REFERENCE_KHZ / 1_000_000);
    }
    first.map(drop)
}

/// Returns the value of a clock reference. The first 33 bits of a clock reference count units of
/// 300 ticks. After the first 33 bits come six unused bits and the nine-bit remainder below 300.
fn clock([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    let bits = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    (bits >> 15) * 300 + (bits & 0x1ff)
}

/// Encodes a value as a clock reference, which [`clock`] decodes.
fn reference_of(clock: u64) -> [u8; 6] {
    let base = (clock / 300) & ((1 << 33) - 1);
    let bits = (base << 15) | (0x3f << 9) | (clock % 300);
    let [_, _, bytes @ ..] = bits.to_be_bytes();
    bytes
}

/// Sends the video to the receiver once. Returns the path of the capture file, and the captured
/// frames.
pub(super) fn play(
    bed: &Bed,
    stage: &mut Stage,
    video: &Path,
    frames: usize,
) -> anyhow::Result<(PathBuf, Vec<Captured>)> {
    let port = format!("port={PORT}");
    let first = stage.programs();
    let player = ["-q", "udpsrc", &port, "!", "fakesink"];
    stage.start_program(bed, NET, "gst-launch-1.0", &player)?;
    let capture = Capture::start(bed, stage, NET, &format!("udp dst port {PORT}"))?;
    let place = format!("location={}", video.display());
    let host = format!("host={}", Plan::ip(NET_PLACE));
    let alignment = format!("alignment={PACKETS}");
    let mut words = vec!["-q", "filesrc", &place, "!", "tsparse", "set-timestamps=true"];
    words.extend([&alignment, "!", "rtpmp2tpay", "mtu=1400", "!", "udpsink", &host, &port]);
    let sender = stage.start_program(bed, VM, "gst-launch-1.0", &words)?;
    // At the limit, a frame takes 5.5 ms.
    let lasts = Duration::from_millis(6) * u32::try_from(frames)?;
    let said = stage.await_program(sender, lasts + LATE)?;
    anyhow::ensure!(!said.contains("ERROR"), "GStreamer said:\n{said}");
    // Frames may still be in the shaper. Wait until none leaves any more.
    loop {
        let readings = stage.watch(QUIET.as_secs_f64(), QUIET)?;
        if let [before, .., after] = &readings[..]
            && after.per_second(before, NET, "tx_frames") <= 0.0
        {
            break;
        }
    }
    let captured = capture.end(stage)?;
    stage.end_programs(first..stage.programs());
    Ok(captured)
}

/// Returns the RTP sequence number and timestamp of a frame. Returns `None` if the frame is not
/// RTP.
fn rtp(frame: &Captured) -> Option<(u16, u32)> {
    let (17, udp, _) = frame.ipv4()? else { return None };
    let rtp = udp.get(8..20)?;
    if udp[2..4] != PORT.to_be_bytes() || rtp[0] >> 6 != 2 {
        return None;
    }
    let number = u16::from_be_bytes([rtp[2], rtp[3]]);
    Some((number, u32::from_be_bytes([rtp[4], rtp[5], rtp[6], rtp[7]])))
}

/// Extracts the RTP stream from a capture. The delay of each frame is relative to the frame with
/// the lowest delay.
fn received(frames: &[Captured]) -> anyhow::Result<Received> {
    let packets: Vec<_> = frames.iter().filter_map(|f| Some((f.at, rtp(f)?))).collect();
    let [(start, (number, stamp)), ..] = packets[..] else { anyhow::bail!("no RTP packet came") };
    let late = |at: Nanos, timestamp: u32| {
        let due = i64::from(timestamp.wrapping_sub(stamp)) * 1_000_000_000 / i64::from(CLOCK);
        at.0.wrapping_sub(start.0).cast_signed() - due
    };
    let fastest = packets.iter().map(|(at, (_, stamp))| late(*at, *stamp)).min().unwrap_or(0);
    let mut received = Received::new();
    let (mut before, mut sent) = (number.wrapping_sub(1), 0);
    for &(at, (number, timestamp)) in &packets {
        let waited = late(at, timestamp) - fastest;
        received.packet(at.saturating_sub(start), timestamp, Nanos(waited.unsigned_abs()));
        sent += u64::from(number.wrapping_sub(before));
        before = number;
    }
    received.dropped = sent.saturating_sub(packets.len() as u64);
    Ok(received)
}

/// Returns the mean rate of the captured frames in Mbit/s, FCS included.
fn mbps(frames: &[Captured]) -> f64 {
    let [first, .., last] = frames else { return f64::NAN };
    let bytes: u64 = frames[1..].iter().map(|frame| u64::from(frame.bytes) + FCS).sum();
    8e3 * crate::rig::stats::to_f64(bytes) / crate::rig::stats::to_f64(last.at.0 - first.at.0)
}

/// Runs tshark on a capture. Returns the mean jitter in ms.
fn tshark(capture: &Path) -> anyhow::Result<serde_json::Value> {
    needs("tshark", "tshark")?;
    let mut command = Command::new("tshark");
    let decode = format!("udp.port=={PORT},rtp");
    command.args(["-n", "-q", "-z", "rtp,streams", "-d", &decode, "-r"]).arg(capture);
    let said = ask(&mut command)?;
    Ok(json!(mean_jitter(&said).with_context(|| format!("tshark said:\n{said}"))?))
}

/// Returns the mean jitter from tshark's table of one stream. Returns `None` if the table cannot be
/// parsed.
fn mean_jitter(said: &str) -> Option<f64> {
    // The columns after the percentage of lost packets are the least, mean and largest gap, and
    // then the least, mean and largest jitter.
    let mut words = said.lines().find(|line| line.contains(" 0x"))?.split_whitespace();
    words.find(|word| word.ends_with("%)"))?;
    words.nth(4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_references_are_read_and_written() {
        let reference = [0x12, 0x34, 0x56, 0x78, 0xff, 0x23];
        assert_eq!(reference_of(clock(reference)), reference);
        assert_eq!(clock([0, 0, 0, 0, 0xfe, 5]), 300 + 5);
        assert_eq!(clock(reference_of(27_000_000)), 27_000_000);
    }

    #[test]
    fn a_video_is_due_when_the_stream_is() {
        let mut stream = vec![0; 4 * PACKETS * PACKET];
        for number in [3, 14] {
            let packet = &mut stream[number * PACKET..];
            (packet[3], packet[4], packet[5]) = (0x20, 7, 0x10);
            packet[6..12].copy_from_slice(&reference_of(1_000));
        }
        let due = [0, 7_000_000, 10_000_000, 12_000_000].map(Nanos);
        let of = |stream: &[u8], number: usize| {
            clock(stream[number * PACKET + 6..number * PACKET + 12].try_into().unwrap())
        };
        set_clock(&mut stream, &due).unwrap();
        assert_eq!(stream.len(), 3 * PACKETS * PACKET);
        assert_eq!((of(&stream, 3), of(&stream, 14)), (1_000 + 81_000, 1_000 + 270_000));
        assert_eq!(set_clock(&mut vec![0; PACKET], &due), None);
        assert_eq!(set_clock(&mut vec![0; 4 * PACKETS * PACKET], &due), None, "no clock");
    }

    fn frame(millis: u64, number: u16, timestamp: u32) -> Captured {
        let mut head = vec![0; 54];
        (head[12], head[14], head[23], head[42]) = (8, 0x45, 17, 0x80);
        (head[17], head[16]) = (0x48, 5);
        head[36..38].copy_from_slice(&PORT.to_be_bytes());
        head[44..46].copy_from_slice(&number.to_be_bytes());
        head[46..50].copy_from_slice(&timestamp.to_be_bytes());
        Captured { at: Nanos(1 << 60) + Nanos::from_millis(millis), bytes: 1_370, head }
    }

    /// The expected values are calculated by hand according to RFC 3550 A.8. For the three packets,
    /// the differences D are 0, 900, 900, and the values of the jitter J are 0, 56.25, 109.
    #[test]
    fn jitter_is_that_of_the_capture_and_gaps_are_lost() {
        let stamp = |n: u32| 0xffff_ff00_u32.wrapping_add(1_800 * n);
        let frames = [
            frame(5, 0xffff, stamp(0)),
            frame(25, 0, stamp(1)),
            frame(55, 1, stamp(2)),
            frame(65, 4, stamp(3)),
            Captured { head: vec![0; 54], ..frame(66, 0, 0) },
        ];
        let received = received(&frames).unwrap();
        assert_eq!((received.packets(), received.dropped), (4, 2));
        let (twice, thrice) = (900.0 / 16.0 / 90.0, 109.0 / 90.0);
        assert!((received.mean() - (twice + thrice) / 4.0).abs() < 0.01, "{}", received.mean());
        assert!(super::received(&frames[4..]).is_err());
        let rate = 4.0 * 1_374.0 * 8.0 / 61e3;
        assert!((mbps(&frames) - rate).abs() < 1e-9);
    }

    #[test]
    fn tshark_is_understood() {
        let said = "== RTP Streams ==\n   Start time ... Problems?\n     0.000000      9.483398  \
                    10.0.1.1 45142   10.0.2.1  5004 0xF6A96DBC  MPEG-II streams  1726     0 (0.0%) \
                    0.297           5.498         9.318           0.003         0.139   0.972 X";
        assert_eq!(mean_jitter(said), Some(0.139));
        assert_eq!(mean_jitter("nothing"), None);
    }
}
