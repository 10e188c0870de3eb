//! `penstock capture` shows the frames of a port, or writes them as pcapng for Wireshark, tshark
//! and tcpdump.

mod filter;
mod output;
mod pcapng;
mod summary;
mod target;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::unistd::gettid;
use penstock_control::api::{CaptureDirection, CaptureRequest, CapturedFrames, GetStatusRequest};
use penstock_vcpu_host::policy::{self, Policy};
use tokio::signal::unix::{SignalKind, signal};

use crate::affinity;
use crate::client::{Client, connect, refused};
use crate::unix_time::unix_ns;
use output::{End, Output};
use pcapng::Writer;
use target::Target;

/// Interval between two lines that say how many frames were captured.
const PROGRESS: Duration = Duration::from_secs(1);
/// Time after a signal in which the frames from before the signal arrive. The daemon looks for
/// frames every 50 ms.
const LAST_FRAMES: Duration = Duration::from_millis(150);
/// Longest wait at the end for a reader that takes nothing.
const READER_LIMIT: Duration = Duration::from_secs(2);
/// Number of the scheduling policy `SCHED_IDLE` (`sched(7)`).
const SCHED_IDLE: u32 = 5;

/// `penstock capture`.
#[derive(Debug, Clone, clap::Args)]
pub struct CaptureArgs {
    /// Name of the port, or a label of one port as KEY=VALUE
    pub port: String,
    /// Direction as the switch sees it: `in` is what the port sends into the switch, `out` is what
    /// the switch sends to the port
    #[arg(long, value_enum, default_value = "both")]
    pub direction: Direction,
    /// Only frames that the switch drops, with the reason that `penstock stats --drops` counts
    #[arg(long)]
    pub drops: bool,
    /// Only frames with these headers: key=value pairs of a rule's `match`, and `host`, `mac` and
    /// `port` for source or destination, as in "proto=tcp port=80 host=10.0.0.1"
    #[arg(long, value_name = "EXPR", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Write pcapng to a file, or to standard output if FILE is `-`. Default: a line per frame
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Bytes to capture of each frame; 0 for whole frames
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 0)]
    pub snaplen: u32,
    /// End after so many frames
    #[arg(short = 'c', long, value_name = "FRAMES", value_parser = at_least_1())]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = at_least_1())]
    pub secs: Option<u64>,
}

fn at_least_1() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..)
}

/// Direction of captured frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// From the port into the switch
    In,
    /// From the switch to the port
    Out,
    /// Both directions
    Both,
}

/// Form of the output.
enum Form {
    Lines(Vec<u8>),
    Pcapng(Box<Writer<Vec<u8>>>),
}

/// Where the frames go.
struct Sink {
    form: Form,
    output: Output,
    /// The output in errors, as in "file vm1.pcapng".
    name: String,
    /// Frames that are missing since the last written frame.
    skipped: u64,
}

/// Numbers of a capture.
#[derive(Debug, Default)]
struct Seen {
    frames: u64,
    left_out: u64,
    lost: u64,
    /// Frames that the output did not take because of an error.
    unwritten: u64,
}

/// Runs `capture` until a signal, the limits of `args` or the daemon end it.
///
/// # Errors
/// Returns an error if the file cannot be written, or if the daemon refuses the capture.
pub async fn run(socket: &Path, args: &CaptureArgs) -> Result<ExitCode> {
    let direction = match args.direction {
        Direction::In => CaptureDirection::In,
        Direction::Out => CaptureDirection::Out,
        Direction::Both => CaptureDirection::Unspecified,
    };
    let request = CaptureRequest {
        port: args.port.clone(),
        direction: direction.into(),
        drops: args.drops,
        filters: filter::matches(&args.filter)?,
        snap_len: args.snaplen,
    };
    let target = Target::open(args.write.as_deref())?;
    end_late();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut client = connect(socket).await?;
    let mut stream = client.capture(request).await.map_err(refused)?.into_inner();
    let begun = stream.message().await.map_err(refused)?.unwrap_or_default();
    let port = begun.port;
    step_aside(&mut client).await;
    let mut sink = Sink::begin(args, &port, target)?;
    eprintln!("capturing at port {port}; Ctrl-C ends");
    let mut seen = Seen::default();
    let tells = args.write.is_some() && io::stderr().is_terminal();
    let mut progress = tokio::time::interval(PROGRESS);
    let end = tokio::time::sleep(args.secs.map_or(Duration::MAX, Duration::from_secs));
    tokio::pin!(end);
    let outcome = loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) => {
                    sink.take(args, (&port, message), &mut seen)?;
                    if args.count.is_some_and(|most| seen.frames >= most) {
                        break Ok(());
                    }
                }
                Ok(None) => break Err(anyhow::anyhow!(
                    "daemon: the capture ended because the daemon stopped"
                )),
                Err(status) => break Err(refused(status)),
            },
            () = sink.output.ended() => break Ok(()),
            _ = progress.tick(), if tells => {
                eprint!("\r{} frames, {} left out ", seen.frames, seen.left_out + seen.lost);
            }
            () = &mut end => break Ok(()),
            _ = interrupt.recv() => end.as_mut().reset(tokio::time::Instant::now() + LAST_FRAMES),
            _ = terminate.recv() => end.as_mut().reset(tokio::time::Instant::now() + LAST_FRAMES),
        }
    };
    let written = sink.finish(&mut seen).await;
    eprintln!("{}{}", if tells { "\r" } else { "" }, seen.text());
    outcome?;
    Ok(if written? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Moves this thread off the workers' cores, and makes it use only time that no other thread wants,
/// because VMs may need the other cores. The capture of a busy port costs this thread some percent
/// of a core. If the kernel refuses, the capture runs all the same.
async fn step_aside(client: &mut Client) {
    let idle = Policy::Other { number: SCHED_IDLE, nice: 0, priority: 0 };
    let _ = policy::set(0, idle);
    let Ok(status) = client.get_status(GetStatusRequest {}).await else { return };
    let workers: Vec<u32> = status.get_ref().workers.iter().map(|worker| worker.core).collect();
    if let Ok(allowed) = affinity::allowed() {
        let cpus = affinity::control_cpus(&allowed, &workers, &[]);
        let _ = affinity::confine(&[affinity::THIS_THREAD], &cpus);
    }
}

/// After a signal, lets the calling thread use the processor like other threads again. Ends the
/// process four seconds later, because a reader that reads slowly could delay the end for long.
fn end_late() {
    const PATIENCE: Duration = Duration::from_secs(4);
    let caller = gettid().as_raw().unsigned_abs();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            // Only with CAP_SYS_NICE. Without it, the end takes longer on a busy machine.
            let _ = policy::set(caller, Policy::DEFAULT);
            tokio::time::sleep(PATIENCE).await;
            eprintln!(
                "capture: not ended after 4 s, because the reader is slow or the machine is busy; \
                 the last frames are lost"
            );
            std::process::exit(1);
        });
    });
}

impl Sink {
    /// Empties the file of `target`, and starts the output.
    fn begin(args: &CaptureArgs, port: &str, target: Target) -> Result<Self> {
        let form = if args.write.is_some() {
            let mut what = format!("Penstock, port {port}");
            if args.drops {
                what.push_str(", dropped frames");
            }
            if !args.filter.is_empty() {
                what = format!("{what}, {}", args.filter);
            }
            Form::Pcapng(Box::new(Writer::new(Vec::new(), port, &what, args.snaplen)?))
        } else {
            Form::Lines(Vec::new())
        };
        let name = match args.write.as_deref() {
            Some(path) if path != Path::new("-") => format!("file {}", path.display()),
            _ => "standard output".to_owned(),
        };
        let mut sink = Self { form, output: Output::start(target.begin()?)?, name, skipped: 0 };
        // A reader of a pipe sees the head of the file at once.
        sink.pass_on(0);
        Ok(sink)
    }

    /// Passes the frames of a message on, or counts them if the output has no room.
    fn take(
        &mut self,
        args: &CaptureArgs,
        (port, message): (&str, CapturedFrames),
        seen: &mut Seen,
    ) -> Result<()> {
        seen.left_out += message.left_out;
        seen.lost += message.lost;
        let rest = args.count.map_or(u64::MAX, |most| most.saturating_sub(seen.frames));
        let rest = usize::try_from(rest).unwrap_or(usize::MAX);
        let (has_room, mut taken) = (self.output.has_room(), 0);
        for mut frame in message.frames.into_iter().take(rest) {
            let missed = self.skipped.saturating_add(frame.missed.into());
            if !has_room {
                self.skipped = missed.saturating_add(1);
                seen.lost += 1;
                continue;
            }
            self.skipped = 0;
            frame.missed = u32::try_from(missed).unwrap_or(u32::MAX);
            taken += 1;
            match &mut self.form {
                Form::Lines(lines) => {
                    lines.extend_from_slice(summary::line(port, &frame).as_bytes());
                }
                Form::Pcapng(file) => file.frame(&frame, &summary::fate(port, &frame))?,
            }
        }
        seen.frames += taken;
        self.pass_on(taken);
        Ok(())
    }

    fn pass_on(&mut self, frames: u64) {
        let bytes = match &mut self.form {
            Form::Lines(lines) => core::mem::take(lines),
            Form::Pcapng(file) => file.take(),
        };
        if !bytes.is_empty() {
            self.output.put(bytes, frames);
        }
    }

    /// Writes the rest. Returns whether everything is written. The frames that are not written
    /// count as lost or unwritten.
    async fn finish(mut self, seen: &mut Seen) -> Result<bool> {
        if let Form::Pcapng(file) = &mut self.form {
            file.finish(unix_ns(), seen.frames, seen.left_out + seen.lost)?;
        }
        self.pass_on(0);
        match self.output.finish(READER_LIMIT).await {
            End::Whole => Ok(true),
            End::Stopped(frames) => {
                seen.frames = seen.frames.saturating_sub(frames);
                seen.lost += frames;
                eprintln!(
                    "capture: the reader of the output takes nothing, so the end of the output is \
                     missing; end the reader after the capture"
                );
                Ok(false)
            }
            End::Failed(error, frames) => {
                seen.frames = seen.frames.saturating_sub(frames);
                seen.unwritten += frames;
                bail!(
                    "{}: cannot be written ({error}), so the end of the capture is missing; make \
                     room, or write to another file",
                    self.name
                )
            }
        }
    }
}

impl Seen {
    /// Returns the numbers as text.
    fn text(&self) -> String {
        let Self { frames, left_out, lost, unwritten } = self;
        let mut text = format!(
            "{frames} frames captured, {left_out} left out to keep the capture's budget of \
             cycles, {lost} lost because the reader was too slow"
        );
        if *unwritten > 0 {
            text.push_str(&format!(", {unwritten} lost because the output cannot be written"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_what_is_not_written() {
        let mut seen = Seen { frames: 1, left_out: 2, lost: 3, unwritten: 0 };
        assert!(seen.text().ends_with(", 3 lost because the reader was too slow"));
        seen.unwritten = 4;
        assert!(seen.text().ends_with("too slow, 4 lost because the output cannot be written"));
    }
}
