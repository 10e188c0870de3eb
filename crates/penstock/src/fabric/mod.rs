//! `penstock controller run`: runs the controller of [`penstock_controller`] as a service.
//!
//! # Approach
//!
//! The controller starts in this order: file, logs, socket, addresses of agents and of the page. A
//! second controller fails when it binds the socket. After its start, the controller tries to
//! become the leader by a lease in the store, and sends `READY=1`. On SIGTERM or SIGINT the
//! controller releases its lease and ends, so that another controller leads at once. On SIGHUP the
//! controller reads its certificates again. The controller also reads certificates soon after the
//! files change. The drivers of switches read their certificates and passwords themselves.

mod crew;
mod drivers;
mod etcd_files;
mod metrics;
mod page;
mod tenants;

use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use penstock_control::config::ConfigErrors;
use penstock_controller::agents::{
    self, AgentServer, Identity, Limits, PemFiles, Registry, ServerTls,
};
use penstock_controller::files::{ControllerFile, StoreFile, TlsFiles, load_controller};
use penstock_controller::leader::{Settings, begin_observing};
use penstock_controller::listen;
use penstock_controller::service::{Controller, Operator, Setup};
use penstock_controller::store::{Embedded, Etcd, EtcdConfig, Store};
use penstock_controller::wire::OPERATOR_BYTES_MAX;
use penstock_controller::wire::v1::operator_service_server::OperatorServiceServer;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tonic::transport::Server;

use crate::cli::ControllerRunArgs;
use crate::daemon::{API_CONNECTIONS_MAX, API_DESCRIPTORS, logs, notify::Notifier, socket};
use crate::grpc;
use crate::table::counted_items;
use crate::verbs::host::mistakes;
use crate::verbs::{print, print_json};
use etcd_files::EtcdFiles;

/// Interval between two checks of the certificate files.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest time between a signal and the end of the controller.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A controller's file without mistakes, and the hosts and switches of its fabric.
struct Checked {
    file: Arc<ControllerFile>,
    hosts: Arc<Registry>,
    crew: crew::Maker,
}

/// Reads a controller's file, and creates the drivers of its switches. Sends nothing to a switch.
fn load(path: &Path) -> Result<Checked, ConfigErrors> {
    let file = Arc::new(load_controller(path)?);
    let hosts = Arc::new(Registry::new(Box::new(file.fabric.topology.clone())));
    let crew = crew::Maker::new(Arc::clone(&file), Arc::clone(&hosts), path)?;
    Ok(Checked { file, hosts, crew })
}

/// Checks a controller's file, its datacenter's file, and the settings of its switches. Exit 1 if
/// there is a mistake.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn check(path: &Path, as_json: bool) -> Result<ExitCode> {
    let checked = load(path);
    if as_json {
        let errors = checked.as_ref().err().map_or(&[][..], |errors| errors.0.as_slice());
        print_json(&json!({ "ok": errors.is_empty(), "errors": errors }))?;
    }
    match &checked {
        Ok(_) if as_json => {}
        Ok(Checked { file, .. }) => {
            let servers = counted_items(file.fabric.topology.servers(), "server");
            let switches = counted_items(file.switches.len(), "switch");
            print(&format!("{}: valid ({servers}, {switches})\n", path.display()))?;
        }
        Err(_) if as_json => return Ok(ExitCode::FAILURE),
        Err(errors) => {
            eprint!("{}", mistakes(errors));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the controller until a signal ends it.
///
/// # Errors
/// Returns an error if the configuration file is wrong, an address is taken, or the store cannot be
/// opened.
pub fn run(args: &ControllerRunArgs) -> Result<ExitCode> {
    let checked = match load(&args.config) {
        Ok(checked) => checked,
        Err(errors) => {
            eprint!("{}", mistakes(&errors));
            return Ok(ExitCode::FAILURE);
        }
    };
    let file = Arc::clone(&checked.file);
    logs::install(args.log_format, &args.log)?;
    if let Some(folder) = file.socket.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("[controller] socket: folder {}", folder.display()))?;
    }
    listen::open_many();
    let (operators, guard) = socket::take(&file.socket, "[controller] socket")?;
    let agents = file.agents.map(|at| take_address("agents", at)).transpose()?;
    let page = file.page.map(|at| take_address("page", at)).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("penstock-fabric")
        .enable_all()
        .build()
        .context("runtime cannot start")?;
    let served = runtime.block_on(serve(checked, args.observe, operators, agents, page));
    let served = served.with_context(|| args.config.display().to_string());
    runtime.shutdown_timeout(Duration::from_millis(500));
    drop(guard);
    served.map(|()| ExitCode::SUCCESS)
}

fn take_address(key: &str, address: std::net::SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!(
            "[controller] {key} {address}: cannot listen; stop the process that listens, or \
                 change the address"
        )
    })?;
    listener.set_nonblocking(true).with_context(|| format!("address {address}"))?;
    Ok(listener)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("file {}", file.display()))
}

/// Opens the store. If the store needs certificates, also returns their files.
async fn open_store(file: &StoreFile) -> Result<(Arc<dyn Store>, Option<EtcdFiles>)> {
    let store: Arc<dyn Store> = match file {
        StoreFile::File(path) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .with_context(|| format!("[store] path: no folder {}", folder.display()))?;
            Arc::new(Embedded::open(path).await?)
        }
        StoreFile::Etcd { endpoints, tls: Some(tls) } => {
            let files = EtcdFiles::open(endpoints.clone(), tls)?;
            return Ok((Arc::new(files.etcd()), Some(files)));
        }
        StoreFile::Etcd { endpoints, tls: None } => {
            Arc::new(Etcd::new(&EtcdConfig::new(endpoints.clone()))?)
        }
    };
    Ok((store, None))
}

fn tls(files: &TlsFiles) -> Result<ServerTls> {
    let TlsFiles { ca, cert, key, crl } = files.clone();
    ServerTls::open(PemFiles { ca, certificate: cert, key, crl }).context("[tls]")
}

async fn serve(
    Checked { file, hosts, crew }: Checked,
    observes: bool,
    operators: std::os::unix::net::UnixListener,
    agents: Option<TcpListener>,
    page: Option<TcpListener>,
) -> Result<()> {
    let notifier = Notifier::from_environment();
    let mut term = signal(SignalKind::terminate()).context("signals cannot be handled")?;
    let mut int = signal(SignalKind::interrupt()).context("signals cannot be handled")?;
    let (store, etcd_files) = open_store(&file.store).await?;
    if observes {
        begin_observing(&*store).await.context("--observe")?;
    }
    let (report_ms, tls_files) = (file.report_ms, file.tls.clone());
    let per_certificate = file.connections_per_certificate;
    let asks = tokio::spawn(crew::ask(crew.drivers(), file.binding.queues));
    let controller = Controller::new(Setup {
        name: file.name.clone(),
        advertise: file.advertise.clone(),
        interval: Duration::from_millis(file.interval_ms),
        leader: Settings { verify_every: file.verify_every, ..Settings::default() },
        store,
        hosts: Arc::clone(&hosts),
        make: Box::new(move || crew.make().map_err(|error| format!("{error:#}"))),
    });
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_operators(Arc::clone(&controller), operators, stopping.clone()));
    let tls = tls_files.as_ref().map(tls).transpose()?;
    tasks.spawn(watch_certificates(tls.clone()));
    if let Some(files) = etcd_files {
        tasks.spawn(files.watch());
    }
    if let Some(listener) = agents {
        let identity = if tls.is_some() { Identity::Certificate } else { Identity::Trusted };
        if identity == Identity::Trusted {
            tracing::warn!(
                "without [tls], any program on the network can pretend to be a host; write [tls]"
            );
        }
        let server = AgentServer::new(hosts, controller.leading(), identity, report_ms);
        let limits = Limits { per_certificate, ..Limits::default() };
        tasks.spawn(serve_agents(server, tls, listener, limits, stopping.clone()));
    }
    if let Some(listener) = page {
        tasks.spawn(page::serve(listener, Arc::clone(&controller), stopping.clone()));
    }
    let running = Arc::clone(&controller).run(stopping);
    let leads = tokio::spawn(running);
    notifier.send("READY=1");
    tracing::info!(name = file.name, "ready");
    let failed = tokio::select! {
        _ = term.recv() => None,
        _ = int.recv() => None,
        Some(ended) = tasks.join_next() => Some(why(ended)),
    };
    notifier.send("STOPPING=1");
    let _ = stop.send(true);
    let _ = tokio::time::timeout(END_LIMIT, leads).await;
    asks.abort();
    tasks.abort_all();
    failed.map_or(Ok(()), Err)
}

/// Returns the error because of which a service of the controller ended.
fn why(ended: Result<Result<()>, JoinError>) -> anyhow::Error {
    match ended {
        Ok(Ok(())) => anyhow::anyhow!("controller: a service ended unexpectedly; see the log"),
        Ok(Err(error)) => error,
        Err(error) => anyhow::anyhow!("controller: internal error in a service: {error}"),
    }
}

async fn serve_operators(
    controller: Arc<Controller>,
    listener: std::os::unix::net::UnixListener,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    listener.set_nonblocking(true).context("socket")?;
    let listener = tokio::net::UnixListener::from_std(listener).context("socket")?;
    let service = OperatorServiceServer::new(Operator::new(controller, tenants::reader()))
        .max_decoding_message_size(OPERATOR_BYTES_MAX)
        .max_encoding_message_size(OPERATOR_BYTES_MAX);
    let incoming = listen::local(listener, API_CONNECTIONS_MAX, API_DESCRIPTORS);
    let names = &["penstock.fabric.v1.OperatorService"];
    let (health, routes) = grpc::standard::<OperatorServiceServer<Operator>>(names).await?;
    grpc::report::<OperatorServiceServer<Operator>>(&health, true).await;
    Server::builder()
        .add_routes(routes.add_service(service))
        .serve_with_incoming_shutdown(incoming, async move {
            let _ = stopping.wait_for(|stopping| *stopping).await;
        })
        .await
        .context("socket")
}

/// Loads new certificates soon after their files changed, and at once at SIGHUP.
async fn watch_certificates(tls: Option<ServerTls>) -> Result<()> {
    let mut hup = signal(SignalKind::hangup()).context("signals cannot be handled")?;
    let watch = async {
        match tls.clone() {
            Some(tls) => tls.watch(LOOK_EVERY).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(watch);
    loop {
        tokio::select! {
            () = &mut watch => return Ok(()),
            _ = hup.recv() => {
                if let Some(tls) = &tls {
                    tls.reload_and_tell();
                }
            }
        }
    }
}

async fn serve_agents(
    server: AgentServer,
    tls: Option<ServerTls>,
    listener: TcpListener,
    limits: Limits,
    mut stopping: watch::Receiver<bool>,
) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener).context("agents' address")?;
    let stop = async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    agents::serve(listener, server, tls, limits, stop).await.context("agents' address")
}
