//! `penstock host run`: runs a [`Host`] as a service, with logs, API, metrics and signals.
//!
//! # Approach
//!
//! The daemon starts in this order: configuration, logs, socket, metrics address, signals, workers
//! and ports. Finally, the daemon accepts requests and sends `READY=1`. A second daemon fails when
//! it binds the socket, before it touches a port.
//!
//! A watchdog task calls [`Host::tick`] four times a second. The task sends `WATCHDOG=1` to the
//! service manager only while no worker is stalled, so the service manager restarts a hung switch.
//! SIGHUP reloads the configuration. SIGTERM and SIGINT end the daemon within [`SHUTDOWN_LIMIT`]
//! and remove its sockets.

mod capture;
mod fabric;
mod handover;
mod http;
pub(crate) mod logs;
mod metrics;
pub(crate) mod notify;
mod rpc;
pub(crate) mod socket;
mod switch;

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::unistd::{Pid, gettid};
use penstock_control::api::{ChangeReport, HostStatus};
use penstock_control::config::{self, HostConfig};
use penstock_control::host::Host;
use penstock_controller::agent::Agent;
use penstock_controller::listen;
use penstock_dataplane::port::helper;
use penstock_qos::bottleneck::INTERVAL;
use penstock_qos::pair_table::PERIOD;
use penstock_units::Nanos;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic_health::server::HealthReporter;

use crate::cli::{LogFormat, RunArgs};
use crate::unix_time::unix_s;
use crate::wire::host_service_server::HostServiceServer;
use crate::wire::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX};
use crate::{affinity, grpc, pages};
use fabric::Fabric;
use notify::Notifier;
use switch::{Switch, Switched};

/// Longest time between a signal and the end of the daemon.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
/// Interval between two checks of the workers' heartbeats, and between two steps of the learner.
const TICK: Duration = Duration::from_millis(100);
/// Number of threads that serve requests.
const CONTROL_THREADS: usize = 2;
/// Names of the services on the API's socket.
const HOST_SERVICE: &str = "penstock.host.v1.HostService";
const SWITCH_SERVICE: &str = "penstock.switch.v1.SwitchService";
/// Limit of concurrent requests on one connection.
const REQUESTS_AT_ONCE: usize = 32;
/// Limit of connections at once on the API's socket. Further connections wait in the socket's
/// backlog.
pub(crate) const API_CONNECTIONS_MAX: usize = 128;
/// Limit of descriptors for connections to the API.
pub(crate) const API_DESCRIPTORS: usize = 8;

/// Role of the host in a fabric: server, switch or none.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    fabric: Option<Fabric>,
    switch: Option<Switched>,
}

impl Parts {
    /// Adds the current state of the host's roles in a fabric to `status`.
    fn enter(&self, status: &mut HostStatus) {
        status.fabric = self.fabric.as_ref().map(Fabric::status);
        status.switch = self.switch.as_ref().map(Switched::status);
    }
}

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// Returns an error if the configuration is wrong, the socket is taken, or the host cannot start.
pub fn run(args: &RunArgs, socket: Option<&Path>) -> Result<ExitCode> {
    let mut config = match config::load(&args.config) {
        Ok(config) => config,
        Err(errors) => {
            eprint!("{}", crate::verbs::host::mistakes(&errors));
            return Ok(ExitCode::FAILURE);
        }
    };
    if let Some(socket) = socket {
        config.host.socket = socket.to_owned();
    }
    logs::install(args.log_format, &config.host.log)?;
    let (listener, guard) = socket::take(&config.host.socket, "[host] socket")?;
    listen::open_many();
    let pages = take_address(&config)?;
    let control_cores = config.worker.control_cores.clone();
    let path = std::path::absolute(&args.config)
        .with_context(|| format!("configuration {}", args.config.display()))?;
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    // A signal during the start must not end the process, because the sessions of the former
    // process would end too. The daemon stops in order as soon as it serves.
    let Control { runtime, threads, signals } = Control::start()?;
    let notifier = Arc::new(Notifier::from_environment());
    let queues = switch::queues_before(&config, &directory);
    let host = Arc::new(Host::start_from(config, Some(path), handover::take(), &queues)?);
    let prepared = keep_off_workers(&host, &control_cores, &threads)
        .and_then(|()| prepare(&host, &directory, &runtime));
    let outcome = match prepared {
        Ok(prepared) => {
            let doors = (listener, pages);
            runtime.block_on(serve(Arc::clone(&host), notifier, signals, doors, prepared))
        }
        Err(error) => {
            handover::hand_back(&host, &notifier);
            Err(error)
        }
    };
    runtime.shutdown_timeout(Duration::from_millis(500));
    drop(guard);
    outcome
}

/// The control threads, which exist before the host starts.
struct Control {
    runtime: Runtime,
    /// Threads of the runtime.
    threads: Vec<Pid>,
    signals: Signals,
}

impl Control {
    fn start() -> Result<Self> {
        let (started, ids) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(CONTROL_THREADS)
            .thread_name("penstock-ctl")
            .on_thread_start(move || {
                // Threads that start later inherit the CPUs, and nobody asks for their numbers.
                let _ = started.send(gettid());
            })
            .enable_all()
            .build()
            .context("runtime cannot start")?;
        let threads = ids.iter().take(CONTROL_THREADS).collect();
        let signals = {
            let _inside = runtime.enter();
            Signals::new()?
        };
        Ok(Self { runtime, threads, signals })
    }
}

/// What the daemon makes between the start of the host and its first request.
struct Prepared {
    joined: Option<(Agent, Fabric)>,
    switch: Option<Switch>,
    health: HealthReporter,
    routes: Routes,
}

/// Makes everything that can fail before the ports take the sessions of the former process over
/// ([`Host::take_over`]).
fn prepare(host: &Arc<Host>, directory: &Path, runtime: &Runtime) -> Result<Prepared> {
    let joined = fabric::join(host, directory)?;
    let switch = switch::become_one(host, directory)?;
    let names = services(switch.is_some());
    let standard = grpc::standard::<HostServiceServer<rpc::Service>>(names);
    let (health, routes) = runtime.block_on(standard)?;
    Ok(Prepared { joined, switch, health, routes })
}

/// Names of the services on the API's socket.
const fn services(is_switch: bool) -> &'static [&'static str] {
    let all = &[HOST_SERVICE, SWITCH_SERVICE];
    if is_switch { all } else { all.split_at(1).0 }
}

/// `penstock host helper`: serves until the service manager stops the process.
///
/// # Errors
/// Returns an error if no service manager started the process, or if the manager's socket failed.
pub fn help(log_format: LogFormat) -> Result<ExitCode> {
    logs::install(log_format, "info")?;
    helper::serve_activated().context("helper")?;
    Ok(ExitCode::SUCCESS)
}

/// Binds the address of `/metrics` before anything starts.
fn take_address(config: &HostConfig) -> Result<Option<TcpListener>> {
    let Some(address) = config.host.metrics else { return Ok(None) };
    let listener = TcpListener::bind(address).with_context(|| {
        format!(
            "[host] metrics {address}: cannot listen; stop the process that listens, or change \
             the address"
        )
    })?;
    Ok(Some(listener))
}

/// Keeps control threads off the workers' cores. Call this function after the start of the host,
/// because the host chooses the workers' cores when it starts.
fn keep_off_workers(host: &Host, configured: &[u32], control: &[Pid]) -> Result<()> {
    let workers: Vec<u32> = host.status().workers.iter().map(|worker| worker.core).collect();
    let cpus = affinity::control_cpus(&affinity::allowed()?, &workers, configured);
    affinity::confine(&[control, &[affinity::THIS_THREAD]].concat(), &cpus)?;
    tracing::debug!(?cpus, ?workers, "control threads kept off the workers' cores");
    Ok(())
}

fn log_change(report: &ChangeReport) {
    let generation = report.generation;
    tracing::info!(generation, changes = ?report.changes, "configuration changed");
    for warning in &report.warnings {
        tracing::warn!(generation, "{warning}");
    }
}

/// Serves until a signal arrives, then shuts down in order.
async fn serve(
    host: Arc<Host>,
    notifier: Arc<Notifier>,
    mut signals: Signals,
    (listener, pages): (UnixListener, Option<TcpListener>),
    Prepared { joined, switch, health, routes }: Prepared,
) -> Result<ExitCode> {
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let fabric = joined.map(|(agent, fabric)| {
        tasks.spawn(take_part(agent, stopping.clone()));
        fabric
    });
    let parts = Parts { fabric, switch: switch.as_ref().map(Switch::seen) };
    if let Some(switch) = switch {
        switch.take_up().await;
        tasks.spawn(switch.serve(stopping.clone()));
    }
    // Nothing can fail from here until the daemon is ready.
    host.take_over();
    tasks.spawn(api(Arc::clone(&host), parts.clone(), listener, routes, stopping.clone()));
    if let Some(pages) = pages {
        let router = http::router(Arc::clone(&host), parts);
        tasks.spawn(pages::serve("metrics address", pages, router, stopping.clone()));
    }
    tasks.spawn(links(Arc::clone(&host), stopping.clone()));
    if host.limits_pairs() {
        tasks.spawn(pairs(Arc::clone(&host), stopping.clone()));
    }
    tasks.spawn(watchdog(Arc::clone(&host), Arc::clone(&notifier), health, stopping));
    let status = host.status();
    handover::clear(&notifier);
    notifier.send(&format!("READY=1\nSTATUS={} ports", host.ports().len()));
    tracing::info!(
        host = status.name,
        version = status.version,
        workers = status.workers.len(),
        "ready"
    );
    let failed = loop {
        tokio::select! {
            _ = signals.hup.recv() => reload(&host, &notifier).await,
            _ = signals.term.recv() => {
                tracing::info!(signal = "SIGTERM", "stopping");
                break None;
            }
            _ = signals.int.recv() => {
                tracing::info!(signal = "SIGINT", "stopping");
                break None;
            }
            Some(ended) = tasks.join_next() => {
                break Some(match ended {
                    Ok(Ok(())) => anyhow::anyhow!("daemon: a service ended by itself"),
                    Ok(Err(error)) => error,
                    Err(error) => anyhow::anyhow!("daemon: internal error in a service: {error}"),
                });
            }
        }
    };
    notifier.send("STOPPING=1");
    let _ = stop.send(true);
    let ended = tokio::time::timeout(SHUTDOWN_LIMIT, end(host, tasks, notifier)).await;
    match (failed, ended) {
        (Some(error), _) => Err(error),
        (None, Ok(result)) => result.map(|()| ExitCode::SUCCESS),
        (None, Err(_)) => bail!(
            "daemon: the shutdown took over {} s, so the daemon ends now; drivers may need to \
             reconnect",
            SHUTDOWN_LIMIT.as_secs()
        ),
    }
}

/// Waits for running requests, then detaches the ports and stops the workers. If the process has a
/// service manager, the manager gets the ports' sessions for the next process.
async fn end(
    host: Arc<Host>,
    mut tasks: JoinSet<Result<()>>,
    notifier: Arc<Notifier>,
) -> Result<()> {
    let drained = async { while tasks.join_next().await.is_some() {} };
    // A client that keeps its connection open must not delay the shutdown.
    if tokio::time::timeout(Duration::from_secs(1), drained).await.is_err() {
        tasks.abort_all();
    }
    let stop = move || {
        // The stored sessions are safe before the shutdown waits for threads that hang.
        let handed_over =
            if notifier.has_manager() { handover::hand_over(&host, &notifier) } else { Ok(()) };
        let stopped = host.shutdown();
        handed_over.and(stopped)
    };
    let stopped = tokio::task::spawn_blocking(stop).await;
    stopped.context("daemon: internal error in the shutdown")?.context("daemon: shutdown")?;
    tracing::info!("stopped");
    Ok(())
}

/// Handles SIGHUP: reads the configuration file again. If the file has a mistake, the function
/// changes nothing and logs the error.
async fn reload(host: &Arc<Host>, notifier: &Notifier) {
    notifier.send("STATUS=reloading");
    let host = Arc::clone(host);
    match tokio::task::spawn_blocking(move || (host.reload(), host.ports().len())).await {
        Ok((Ok(report), ports)) => {
            log_change(&report);
            notifier.send(&format!("STATUS={ports} ports"));
        }
        Ok((Err(errors), ports)) => {
            for error in &errors.0 {
                tracing::error!("{error}");
            }
            tracing::error!(
                mistakes = errors.0.len(),
                "configuration refused, the former configuration stays in force"
            );
            notifier.send(&format!("STATUS={ports} ports; last reload refused"));
        }
        Err(error) => tracing::error!(%error, "reload failed"),
    }
}

/// Runs the agent of the fabric. If the controller is unreachable, the data path does not change.
async fn take_part(agent: Agent, mut stopping: watch::Receiver<bool>) -> Result<()> {
    agent
        .run(async move {
            let _ = stopping.wait_for(|stopping| *stopping).await;
        })
        .await;
    Ok(())
}

/// Serves the gRPC API on the daemon's unix socket.
async fn api(
    host: Arc<Host>,
    parts: Parts,
    listener: UnixListener,
    routes: Routes,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener).context("API socket")?;
    let service = HostServiceServer::new(rpc::Service::new(host, parts.clone(), stopping.clone()))
        .max_decoding_message_size(REQUEST_BYTES_MAX)
        .max_encoding_message_size(REPLY_BYTES_MAX);
    let mut routes = routes.add_service(service);
    if let Some(switch) = &parts.switch {
        routes = routes.add_service(switch.service());
    }
    let incoming = listen::local(listener, API_CONNECTIONS_MAX, API_DESCRIPTORS);
    tonic::transport::Server::builder()
        .concurrency_limit_per_connection(REQUESTS_AT_ONCE)
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, async move {
            let _ = stopping.wait_for(|stopping| *stopping).await;
        })
        .await
        .context("API socket")
}

/// Calls [`Host::watch_links`] and [`Host::remember`] regularly.
async fn links(host: Arc<Host>, mut stopping: watch::Receiver<bool>) -> Result<()> {
    let start = tokio::time::Instant::now();
    let mut looks = tokio::time::interval(Duration::from_nanos(INTERVAL.0));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = tokio::select! {
            now = looks.tick() => now,
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        };
        let since_start = u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX);
        let host = Arc::clone(&host);
        tokio::task::spawn_blocking(move || {
            host.watch_links(Nanos(since_start));
            host.remember(unix_s());
        })
        .await
        .context("daemon: internal error in the watch of links")?;
    }
}

/// Calls [`Host::allocate_rates`] regularly.
async fn pairs(host: Arc<Host>, mut stopping: watch::Receiver<bool>) -> Result<()> {
    let start = tokio::time::Instant::now();
    let mut periods = tokio::time::interval(Duration::from_nanos(PERIOD.0));
    periods.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = tokio::select! {
            now = periods.tick() => now,
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        };
        let since_start = u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX);
        let host = Arc::clone(&host);
        tokio::task::spawn_blocking(move || host.allocate_rates(Nanos(since_start)))
            .await
            .context("daemon: internal error in the rates of pairs")?;
    }
}

/// Calls [`Host::tick`], and notifies the service manager while no worker is stalled. The gRPC
/// health service reports the same.
async fn watchdog(
    host: Arc<Host>,
    notifier: Arc<Notifier>,
    health: HealthReporter,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    let mut reported = None;
    let start = tokio::time::Instant::now();
    let mut told = start;
    // sd_watchdog_enabled(3) recommends two notifications in each interval.
    let tell_every = notifier.watchdog.map(|limit| limit / 2);
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = tokio::select! {
            now = ticks.tick() => now,
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
        };
        let since_start = u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX);
        let ticked = Arc::clone(&host);
        let healthy = tokio::task::spawn_blocking(move || {
            ticked.tick(Nanos(since_start));
            !ticked.status().workers.iter().any(|worker| worker.stalled)
        })
        .await
        .context("daemon: internal error in the watchdog")?;
        if reported != Some(healthy) {
            grpc::report::<HostServiceServer<rpc::Service>>(&health, healthy).await;
            reported = Some(healthy);
        }
        if healthy && tell_every.is_some_and(|every| now - told + TICK > every) {
            notifier.send("WATCHDOG=1");
            told = now;
        }
    }
}

#[derive(Debug)]
struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let take = |kind| signal(kind).context("signals cannot be handled");
        Ok(Self {
            term: take(SignalKind::terminate())?,
            int: take(SignalKind::interrupt())?,
            hup: take(SignalKind::hangup())?,
        })
    }
}
