//! Live experiment for C2QoS Fig. 12, with FTP servers and web servers behind one worker core.
//!
//! # Problem
//!
//! Two FTP servers (vsftpd) and two web servers (nginx) share a worker. The four servers bought the
//! worker's capacity in the ratio 4 : 4 : 1 : 1. The FTP servers send as fast as their clients
//! receive. For a while, wrk sends many requests to the web servers, which causes many small
//! frames.
//!
//! # Source
//!
//! The experiment replays C2QoS §VI-C and Fig. 12.
//!
//! # Approach
//!
//! All namespaces and their programs share one core ([`super::stage`]). The switch's worker has
//! another core, and may spend an 80th of the core's cycles under every policy. The clients of all
//! servers are behind one port, which represents an uplink. First, a calibration measures FTP
//! alone, without limits. After the calibration, the servers buy 90 % of the bits per second, or of
//! the cycles, that the calibration measured.
//!
//! The experiment has four runs with different limits:
//! - In the *Native* run, only the web servers run, and no server has a limit.
//! - *Bps* is a run in which each FTP or web server has a limit in bits per second. The clients'
//!   port, which sends acknowledgements and requests, has no limit.
//! - *Cycles* is a run in which each FTP or web server has a limit in cycles. The clients' port
//!   buys the fraction of the cycles that it used in the calibration.
//! - In the run *Cycles with classes* (`cycles-hbs`), servers have limits in cycles, and ports also
//!   have latency classes. The web servers and the clients' port are in the first class, and the
//!   FTP servers are in the third class.
//!
//! The runs of all policies take turns, and results are medians. A run's result is about the switch
//! only if the programs are not short of their core, so the record has the idle time of that core.
//!
//! # Departures
//!
//! The paper's FTP servers bought 4 Gbit/s on a whole core, and its web servers ran in VMs.
//!
//! # Cost
//!
//! A run of the experiment takes about three minutes.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::machine;
use super::needs::needs;
use super::stage::{Reading, Stage, mean_bps};
use crate::evidence::{Claim, Context, Outcome};
use crate::rig::plan::{Bound, Plan, Policy, Vm};
use crate::rig::platform;
use crate::rig::stats::middle;
use penstock_guest::bed::Bed;

/// Fraction of the core's cycles that the switch's worker may spend.
const CORE_PART: f64 = 1.0 / 80.0;
/// Fraction of the measured capacity that all ports together buy.
const SOLD: f64 = 0.9;
/// Ratio of purchases: an FTP server buys 4 parts, a web server buys 1 part, and all four servers
/// buy 10 parts.
const PARTS: [f64; 3] = [4.0, 1.0, 10.0];
/// Time between two readings of the switch's counters.
const STEP: Duration = Duration::from_millis(250);
/// Number of connections that each wrk opens, as an argument of wrk.
const CONNECTIONS: &str = "4";
const FTP: [&str; 2] = ["ftp1", "ftp2"];
const WEB: [&str; 2] = ["web1", "web2"];
const NET: &str = "net";

/// Result of the calibration, in which only the FTP servers send.
#[derive(Debug, Clone, Copy)]
struct Sale {
    capacity: f64,
    /// Rate of both FTP servers together, in bits per second.
    ftp_bps: f64,
    /// Fraction of the worker's used cycles that it spent on frames of the FTP servers. The frames
    /// of the clients' port took the rest of the worker's used cycles.
    ftp_share: f64,
}

/// The ingress policy of a run. `Free` means that no port has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    Bps,
    Cycles,
    C2qos,
}

impl Way {
    const ALL: [Self; 4] = [Self::Free, Self::Bps, Self::Cycles, Self::C2qos];

    fn name(self) -> &'static str {
        match self {
            Self::Free => "native",
            Self::Bps => "bps",
            Self::Cycles => "cycles",
            Self::C2qos => "cycles-hbs",
        }
    }

    fn plan(self, sale: Sale) -> Plan {
        let schedule = if self == Self::C2qos { "hbs" } else { "round-robin" };
        let bound = |name: &str| match self {
            Self::Free => Bound::default(),
            Self::Bps if name == NET => Bound::default(),
            Self::Bps => {
                let bits = SOLD * sale.ftp_bps * part(name);
                Bound { policy: Policy::Bps, bits, ..Bound::default() }
            }
            Self::Cycles | Self::C2qos => {
                let cycles = SOLD * sale.capacity * cycles_part(name, sale.ftp_share);
                // FTP would use all spare cycles. So it is strictly limited to its purchase, as in
                // the paper.
                let ftp = FTP.contains(&name);
                let policy = if ftp { Policy::Strict } else { Policy::Minmax };
                let priority = match self {
                    Self::C2qos if ftp => 3,
                    Self::C2qos => 1,
                    _ => 0,
                };
                Bound { policy, cycles, priority, weight: 1, ..Bound::default() }
            }
        };
        let vm = |name: &&str| Vm { name: (*name).to_owned(), bound: bound(name), ..Vm::default() };
        let vms = FTP.iter().chain(&WEB).chain(&[NET]).map(vm).collect();
        let mut plan = Plan::new(schedule, vms);
        plan.worker = format!("capacity = {:.0}\n", sale.capacity);
        plan
    }
}

/// Returns the purchase of a server, as a fraction of the purchases of all four servers.
fn part(name: &str) -> f64 {
    if FTP.contains(&name) { PARTS[0] / PARTS[2] } else { PARTS[1] / PARTS[2] }
}

/// Returns the purchase of a port in cycles, as a fraction of the cycles that all ports buy.
fn cycles_part(name: &str, ftp_share: f64) -> f64 {
    if name == NET { 1.0 - ftp_share } else { ftp_share * part(name) }
}

/// What frames of some ports cost the worker.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    cycles_per_second: f64,
    cycles_per_frame: f64,
    frames_per_batch: f64,
}

impl Spent {
    /// Returns what the FTP servers cost, and then what the clients' port costs.
    fn both(readings: &[Reading]) -> [Self; 2] {
        [&FTP[..], &[NET]].map(|ports| Self::of(readings, ports))
    }

    fn of(readings: &[Reading], ports: &[&str]) -> Self {
        let [first, .., last] = readings else { return Self::default() };
        let sum = |name| ports.iter().map(|port| last.per_second(first, port, name)).sum::<f64>();
        let [cycles, frames, batches] = ["cycles", "rx_frames", "rx_batches"].map(sum);
        Self {
            cycles_per_second: cycles,
            cycles_per_frame: cycles / frames,
            frames_per_batch: frames / batches,
        }
    }

    fn middle(all: impl Iterator<Item = Self>) -> Self {
        let all: Vec<Self> = all.collect();
        let of = |of: fn(&Self) -> f64| middle(&all.iter().map(of).collect::<Vec<_>>());
        Self {
            cycles_per_second: of(|one| one.cycles_per_second),
            cycles_per_frame: of(|one| one.cycles_per_frame),
            frames_per_batch: of(|one| one.frames_per_batch),
        }
    }

    fn json(self) -> serde_json::Value {
        json!({
            "mcycles_per_s": self.cycles_per_second / 1e6,
            "cycles_per_frame": self.cycles_per_frame,
            "frames_per_batch": self.frames_per_batch,
        })
    }
}

/// Rates of the FTP servers and response times of the web servers in a run under one policy.
#[derive(Debug, Clone, Default)]
struct Found {
    /// Rate of the FTP servers in bits per second, without and with load on the web servers.
    ftp_bps: [f64; 2],
    /// 50th and 99th percentile of web response times, in microseconds.
    us: [f64; 2],
    /// Total number of requests per second that the two web servers answer.
    requests: f64,
    ftp_over_time: Vec<(f64, f64)>,
    /// What the FTP servers cost, and then what the clients' port costs, while only FTP sends.
    spent: [Spent; 2],
    /// Percentage of the time in which the programs' core was idle while the web servers had load.
    idle_pct: f64,
}

impl Found {
    /// Returns the medians of all runs, and the last run's rates over time.
    fn median(runs: &[Self]) -> Self {
        let of = |of: &dyn Fn(&Self) -> f64| middle(&runs.iter().map(of).collect::<Vec<_>>());
        Self {
            ftp_bps: [of(&|run| run.ftp_bps[0]), of(&|run| run.ftp_bps[1])],
            us: [of(&|run| run.us[0]), of(&|run| run.us[1])],
            requests: of(&|run| run.requests),
            ftp_over_time: runs.last().map(|run| run.ftp_over_time.clone()).unwrap_or_default(),
            spent: [0, 1].map(|side| Spent::middle(runs.iter().map(|run| run.spent[side]))),
            idle_pct: of(&|run| run.idle_pct),
        }
    }
}

/// Runs the live experiment of C2QoS Fig. 12.
pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<Outcome> {
    for (program, package) in
        [("vsftpd", "vsftpd"), ("nginx", "nginx-light"), ("wrk", "wrk"), ("curl", "curl")]
    {
        needs(program, package)?;
    }
    let bed = Bed::new(&context.live.bed, context.guard()?.clone())?;
    let secs = context.live.secs.unwrap_or(4.0);
    let mut outcome = Outcome { platform: platform(&bed, false), ..Outcome::default() };
    let capacity = (CORE_PART * bed.tsc_hz()).round();
    let (sale, spent) = sell(&bed, capacity, secs)?;
    outcome.note(
        "sold",
        json!({ "capacity_mcycles_per_s": capacity / 1e6, "ftp_mbps": sale.ftp_bps / 1e6,
            "ftp_share_of_cycles": sale.ftp_share, "ftp_alone": spent[0].json(),
            "clients_of_ftp_alone": spent[1].json() }),
    );
    let runs = context.live.runs.unwrap_or(3).max(1);
    let mut turns = vec![Vec::new(); Way::ALL.len()];
    for run in 0..runs {
        for (i, way) in (0_u32..).zip(Way::ALL) {
            let at = f64::from(4 * run + i) / f64::from(4 * runs);
            context.progress(at, format_args!("{}, run {}", way.name(), run + 1));
            turns[i as usize].push(under(&bed, way, sale, secs)?);
        }
    }
    let mut all = Vec::new();
    for (way, turns) in Way::ALL.into_iter().zip(&turns) {
        let found = Found::median(turns);
        outcome.note(
            way.name(),
            json!({
                "ftp_mbps": found.ftp_bps[0] / 1e6,
                "ftp_mbps_under_pressure": found.ftp_bps[1] / 1e6,
                "p50_us": found.us[0],
                "p99_us": found.us[1],
                "requests_per_s": found.requests,
                "ftp_alone": found.spent[0].json(),
                "clients_of_ftp_alone": found.spent[1].json(),
                "idle_pct_of_the_programs_core": found.idle_pct,
            }),
        );
        if way != Way::Free {
            let name = format!("ftp {}", way.name());
            outcome.series(&name, "Mbit/s", found.ftp_over_time.iter().copied());
        }
        let points = [(50.0, found.us[0]), (99.0, found.us[1])];
        outcome.series(&format!("response {}", way.name()), "us", points);
        all.push(found);
    }
    conclude(&mut outcome, &all);
    Ok(outcome)
}

/// Runs the calibration: only the FTP servers send, without limits. Returns the sale, and what the
/// frames cost.
fn sell(bed: &Bed, capacity: f64, secs: f64) -> anyhow::Result<(Sale, [Spent; 2])> {
    let free = Sale { capacity, ftp_bps: 0.0, ftp_share: 0.0 };
    let mut stage = Stage::start(bed, "sale", &Way::Free.plan(free))?;
    serve(bed, &mut stage)?;
    download(bed, &mut stage)?;
    let readings = stage.watch(secs, STEP)?;
    // The first half does not count, because TCP needs time to find its rate.
    let late = &readings[readings.len() / 2..];
    let spent = Spent::both(late);
    let [ftp, net] = spent.map(|spent| spent.cycles_per_second);
    let ftp_bps = FTP.iter().map(|port| mean_bps(late, port)).sum();
    Ok((Sale { capacity, ftp_bps, ftp_share: ftp / (ftp + net) }, spent))
}

/// Runs one policy: first FTP alone, then FTP with load on the web servers. A *Native* run has no
/// FTP downloads.
fn under(bed: &Bed, way: Way, sale: Sale, secs: f64) -> anyhow::Result<Found> {
    let mut stage = Stage::start(bed, way.name(), &way.plan(sale))?;
    serve(bed, &mut stage)?;
    let mut readings = Vec::new();
    if way != Way::Free {
        download(bed, &mut stage)?;
        stage.watch(secs / 2.0, STEP)?;
        readings = stage.watch(secs, STEP)?;
    }
    let calm = readings.len();
    let duration = format!("{:.0}s", secs.max(1.0));
    let mut running = Vec::new();
    for (web, number) in WEB.into_iter().zip(FTP.len()..) {
        let url = format!("http://{}/", Plan::ip(number));
        let _ = web;
        let words = ["-t1", "-c", CONNECTIONS, "-d", &duration, "--latency", url.as_str()];
        running.push(stage.start_program(bed, NET, "wrk", &words)?);
    }
    let machine = || machine::Reading::take(&[bed.generator_core()]);
    let before = machine();
    readings.extend(stage.watch(secs, STEP)?);
    let mut found = Found { idle_pct: before.idle_pct(&machine()), ..Found::default() };
    let share = 1.0 / f64::from(2_u8);
    for program in running {
        let said = stage.await_program(program, Duration::from_secs(20))?;
        let (us, requests) = response_times(&said).with_context(|| format!("wrk said:\n{said}"))?;
        (0..2).for_each(|i| found.us[i] += share * us[i]);
        found.requests += requests;
    }
    let both = |readings: &[Reading]| FTP.iter().map(|port| mean_bps(readings, port)).sum();
    if way != Way::Free {
        found.ftp_bps = [both(&readings[..calm]), both(&readings[calm..])];
        found.spent = Spent::both(&readings[..calm]);
        let step = STEP.as_secs_f64();
        found.ftp_over_time = readings
            .windows(2)
            .zip(1_u32..)
            .map(|(pair, i)| (f64::from(i) * step, both(pair) / 1e6))
            .collect();
    }
    Ok(found)
}

/// Starts all FTP and web servers and waits until they answer.
fn serve(bed: &Bed, stage: &mut Stage) -> anyhow::Result<()> {
    let dir = stage.dir().to_owned();
    let files = dir.join("files");
    std::fs::create_dir_all(&files).context("making a directory")?;
    let big = std::fs::File::create(files.join("big")).context("making a file")?;
    big.set_len(1 << 36).context("making a large file of holes")?;
    std::fs::write(files.join("index.html"), "x".repeat(64)).context("writing a page")?;
    for (number, ftp) in FTP.into_iter().enumerate() {
        let conf = dir.join(format!("{ftp}.conf"));
        std::fs::write(&conf, ftp_configuration(&files.display().to_string()))?;
        stage.start_program(bed, ftp, "vsftpd", &[&conf.display().to_string()])?;
        stage.await_tcp(NET, number, 21)?;
    }
    for (web, number) in WEB.into_iter().zip(FTP.len()..) {
        let conf = dir.join(format!("{web}.conf"));
        let at = dir.display().to_string();
        std::fs::write(&conf, web_configuration(&at, &files.display().to_string(), web))?;
        let conf = conf.display().to_string();
        stage.start_program(bed, web, "nginx", &["-p", &at, "-c", &conf, "-e", "stderr"])?;
        stage.await_tcp(NET, number, 80)?;
    }
    Ok(())
}

fn ftp_configuration(files: &str) -> String {
    format!(
        "listen=YES\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={files}\n\
         no_anon_password=YES\nseccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\n\
         xferlog_enable=NO\nuse_sendfile=YES\n"
    )
}

pub(super) fn web_configuration(dir: &str, files: &str, name: &str) -> String {
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {dir}/{name}.pid;\nerror_log stderr;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000;\n\
         \x20 client_body_temp_path {dir}/{name}-body;\n  proxy_temp_path {dir}/{name}-proxy;\n\
         \x20 fastcgi_temp_path {dir}/{name}-fastcgi;\n  uwsgi_temp_path {dir}/{name}-uwsgi;\n\
         \x20 scgi_temp_path {dir}/{name}-scgi;\n\
         \x20 server {{ listen 80; root {files}; }}\n}}\n"
    )
}

/// Starts a download from each FTP server. Each download takes longer than the run.
fn download(bed: &Bed, stage: &mut Stage) -> anyhow::Result<()> {
    for number in 0..FTP.len() {
        let url = format!("ftp://{}/big", Plan::ip(number));
        stage.start_program(bed, NET, "curl", &["-s", "-o", "/dev/null", &url])?;
    }
    Ok(())
}

/// Parses wrk's output. Returns the 50th and 99th percentile in microseconds, and the requests per
/// second.
fn response_times(said: &str) -> Option<([f64; 2], f64)> {
    let after = |label: &str| {
        let line = said.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
        Some(line.trim().to_owned())
    };
    let micros = |text: String| {
        let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
        let (text, factor) =
            units.iter().find_map(|(unit, f)| Some((text.strip_suffix(unit)?, *f)))?;
        Some(text.parse::<f64>().ok()? * factor)
    };
    let requests = after("Requests/sec:")?.parse().ok()?;
    Some(([micros(after("50%")?)?, micros(after("99%")?)?], requests))
}

fn conclude(outcome: &mut Outcome, all: &[Found]) {
    let [native, bps, cycles, c2qos] = all else { return };
    let delta = |found: &Found| 100.0 * (found.ftp_bps[1] / found.ftp_bps[0] - 1.0);
    let left =
        |found: &Found, i: usize| 100.0 * (found.us[i] - native.us[i]) / (bps.us[i] - native.us[i]);
    let claims = [
        (
            "bps_ftp_delta_pct",
            "Change of FTP's rate under load on the web servers, `bps`.",
            delta(bps),
        ),
        (
            "c2tb_ftp_delta_pct",
            "Change of FTP's rate under load on the web servers, cycles and classes.",
            delta(c2qos),
        ),
        (
            "c2tb_only_ftp_delta_pct",
            "Change of FTP's rate under load on the web servers, cycles only.",
            delta(cycles),
        ),
        (
            "added_latency_left_cycles_pct",
            "Added median response time with cycles only, in percent of what `bps` adds.",
            left(cycles, 0),
        ),
        (
            "added_latency_left_pct",
            "Added median response time with cycles and classes, in percent of what `bps` adds.",
            left(c2qos, 0),
        ),
        (
            "added_p99_left_pct",
            "Added p99 response time with cycles and classes, in percent of what `bps` adds.",
            left(c2qos, 1),
        ),
    ];
    for (id, statement, value) in claims {
        outcome.claim(Claim::new(id, statement, "%").measured(value));
    }
    let what = "Least idle part of the programs' core while the web servers have load.";
    let idle = all.iter().map(|found| found.idle_pct).fold(f64::INFINITY, f64::min);
    outcome.claim(Claim::new("programs_idle_pct_min", what, "%").at_least(5.0).measured(idle));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let said = "  Latency Distribution\n     50%  635.00us\n     75%    1.10ms\n     \
                    90%    2.00ms\n     99%    1.20s\n  9 requests in 2s\n\
                    Requests/sec:   4521.17\n";
        assert_eq!(response_times(said), Some(([635.0, 1_200_000.0], 4521.17)));
        assert_eq!(response_times("nothing"), None);
    }

    #[test]
    fn what_is_sold_is_ninety_percent_of_the_cycles() {
        let sale = Sale { capacity: 1e8, ftp_bps: 1e9, ftp_share: 0.8 };
        let plan = Way::C2qos.plan(sale);
        let sold: f64 = plan.vms.iter().map(|vm| vm.bound.cycles).sum();
        assert!((sold - 0.9e8).abs() < 1.0, "{sold}");
        let bits: f64 = Way::Bps.plan(sale).vms.iter().map(|vm| vm.bound.bits).sum();
        assert!((bits - 0.9e9).abs() < 1.0, "{bits}");
    }
}
