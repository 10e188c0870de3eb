//! Grammar of the command line. [`crate::verbs`], [`crate::daemon`] and [`crate::fabric`] execute
//! the commands.
//!
//! Doc comments of arguments and commands are their help: imperative, with unit, default and limit.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use penstock_control::what_if::WhatIf;
use penstock_units::labels::selector;

/// Default socket of the switch's daemon.
pub const DEFAULT_SOCKET: &str = "/run/penstock/host.sock";

/// A user-space virtual switch for multi-tenant hosts.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Unix socket of the switch's daemon. Default: /run/penstock/host.sock, but `host run` takes
    /// `[host] socket` of its configuration file
    #[arg(
        long,
        global = true,
        env = "PENSTOCK_SOCKET",
        value_name = "PATH",
        help_heading = "Global options"
    )]
    pub socket: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `penstock`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the switch on this host, show its state, check and reload its configuration.
    #[command(subcommand)]
    Host(HostCommand),
    /// List, add, change and delete ports. A port attaches a VM, a namespace or an interface.
    #[command(subcommand)]
    Port(PortCommand),
    /// List, add, change and delete tenants. A tenant owns ports and VLANs.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// List, add and delete flow rules. A rule has a priority, a match and actions.
    #[command(subcommand)]
    Flow(FlowCommand),
    /// List and flush the forwarding database, which maps MAC addresses to ports.
    #[command(subcommand)]
    Fdb(FdbCommand),
    /// Print counters and rates of ports.
    Stats(StatsArgs),
    /// Show a live view of ports and workers.
    Top(TopArgs),
    /// Capture the frames of a port, with what the switch did with each frame.
    Capture(crate::verbs::capture::CaptureArgs),
    /// Explain what limits a port's rate now, and which ports use its core.
    Explain(ExplainArgs),
    /// Report what each contract got in the past, minute by minute, and who was responsible if it
    /// got less.
    Report(crate::verbs::report::ReportArgs),
    /// Write configuration, state, counters, logs and versions to a file, without secrets.
    SupportBundle(crate::verbs::support::SupportArgs),
    /// Run a fabric's controller, send commands to a controller, or plan a fabric offline.
    Controller(ControllerArgs),
    /// Schedule the vCPU threads of this host's VMs by share and deadline.
    #[command(subcommand)]
    Vcpu(VcpuCommand),
    /// Give network namespaces a NIC on a vhost-user port, like the NIC of a VM.
    Endpoint(penstock_guest::endpoint::EndpointArgs),
    /// Measure the cycles that a frame costs on this host, and write the cost model.
    Calibrate(crate::calibrate::CalibrateArgs),
    /// Say that `penstock-lab` replaces this command.
    #[command(hide = true, disable_help_flag = true)]
    Lab(Moved),
    /// Say that `penstock-lab bench` replaces this command.
    #[command(hide = true, disable_help_flag = true)]
    Bench(Moved),
    /// Wait until standard input ends, then clean up after `calibrate`.
    #[command(name = penstock_guest::bed::guard::VERB, hide = true)]
    Guard,
    /// Print a completion script for a shell.
    Completions {
        /// Shell that reads the script.
        shell: Shell,
    },
    /// Write manual pages of all commands to a directory.
    Man {
        /// Directory for the pages, which must exist.
        dir: PathBuf,
    },
}

/// Arguments of a command that moved to another program.
#[derive(Clone, Debug, Args)]
#[command(disable_version_flag = true)]
pub struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Moved {
    /// Returns the message that another command replaces `penstock NAME`.
    pub fn text(&self, name: &str) -> String {
        let verb = self.words.first().filter(|word| !word.starts_with('-'));
        let verb = verb.map(|word| format!(" {}", crate::table::printable(word)));
        let verb = verb.unwrap_or_default();
        let now = match (name, verb.as_str()) {
            ("lab", " endpoint") => "penstock endpoint".to_owned(),
            ("lab", verb) => format!("penstock-lab{verb}"),
            (name, verb) => format!("penstock-lab {name}{verb}"),
        };
        format!("`penstock {name}{verb}` is `{now}` now, with the same options")
    }
}

#[derive(Clone, Copy, Debug, Args)]
pub struct Json {
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of all commands that change the configuration.
#[derive(Clone, Copy, Debug, Args)]
pub struct Save {
    /// Do not write the change to the configuration file. An unsaved change lasts until the next
    /// reload or restart.
    #[arg(long)]
    pub no_save: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `penstock host`.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Run the switch in the foreground until SIGTERM or SIGINT. SIGHUP reloads the
    /// configuration.
    Run(RunArgs),
    /// Check a configuration file without a daemon. Print every mistake, and whether this host has
    /// the cycles and bandwidth that its ports purchased.
    Check {
        /// Configuration file of a switch.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Say whether a port could buy this contract, as in `vm7=4G@imix,class=2`. Changes
        /// nothing. Other keys: weight, flows, uplink, min_pps, max_rate, max_pps.
        #[arg(long, value_name = "PORT=RATE[@SIZE][,KEY=VALUE]...")]
        what_if: Option<WhatIf>,
        #[command(flatten)]
        json: Json,
    },
    /// Show the daemon's version, configuration, workers and role in a fabric.
    Show(Json),
    /// Print the configuration in force, or migrate a file of an older release.
    Config {
        /// Rewrite this file with the current keys. Comments and the order of keys do not change.
        /// Needs no daemon.
        #[arg(long, value_name = "FILE")]
        migrate: Option<PathBuf>,
    },
    /// Make the daemon read its configuration file again. If the file has a mistake, nothing
    /// changes.
    Reload(Json),
    /// Print the JSON schema of a configuration file.
    Schema {
        /// Kind of file: `host` (switch), `controller`, `fabric` (topology of a fabric), `tenants`
        /// (tenants of a fabric) or `vcpu` (vCPU scheduler).
        #[arg(value_name = "KIND", default_value = "host", value_parser = schema_kinds())]
        kind: String,
    },
    /// Do privileged work for a switch that does not run as root: open interfaces in network
    /// namespaces, and set owners of sockets. The systemd unit penstock-helper.socket starts this
    /// command.
    Helper {
        /// Format of the log on standard error.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
}

fn schema_kinds() -> PossibleValuesParser {
    crate::verbs::host::SCHEMAS.map(|(kind, _)| kind).into()
}

/// `penstock host run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Configuration file of the switch (docs/reference/configuration.md).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Stay in the foreground. `--foreground` has no effect, because the switch always stays in the
    /// foreground.
    #[arg(long)]
    pub foreground: bool,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Write one line of text per event.
    Text,
    /// Write one JSON object per event.
    Json,
}

/// `penstock vcpu`.
#[derive(Debug, Subcommand)]
pub enum VcpuCommand {
    /// Schedule vCPUs in the foreground until SIGTERM, then restore the threads' settings. SIGHUP
    /// reloads the configuration.
    Run {
        /// Configuration file of the scheduler, or of a switch with `[vcpu]`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Format of the log on standard error.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
    /// Check a configuration file without a scheduler. Print every mistake, and every deadline that
    /// the CPUs cannot meet.
    Check {
        /// Configuration file of the scheduler, or of a switch with `[vcpu]`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Show shares, waiting times and missed deadlines of every vCPU.
    Show {
        #[command(flatten)]
        labels: Selectors,
        /// Run directory of the scheduler.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Make the scheduler read its configuration file again. If the file has a mistake, nothing
    /// changes.
    Reload {
        /// Run directory of the scheduler.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Report an external event for a VM. The event starts the VM's deadline.
    Event {
        /// Name of the VM.
        vm: String,
        /// Run directory of the scheduler.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Restore the threads' settings after a scheduler died. `vcpu run` also restores the settings
    /// when it starts.
    Sweep {
        /// Run directory of the scheduler.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Restore the threads' settings if the scheduler dies or stalls. `vcpu run` starts this
    /// command.
    #[command(hide = true)]
    Watchdog {
        /// Run directory of the scheduler.
        #[arg(long, value_name = "DIR")]
        run_dir: PathBuf,
    },
}

/// `penstock port`.
#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// List all ports, or the ports with some labels.
    List {
        #[command(flatten)]
        labels: Selectors,
        #[command(flatten)]
        json: Json,
    },
    /// Show one port: state, features, rings, configuration.
    Show {
        /// Name of the port, or a label KEY=VALUE that only this port has.
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Add a port.
    #[command(after_help = "Keys of [[port]]: docs/reference/configuration.md. Example:\n  \
        penstock port add vm3 vhost-user.socket=/run/p/vm3.sock tenant=red vlan=100 \
        mac=52:54:00:00:00:03")]
    Add(ObjectArgs),
    /// Change keys of a port. `key=` resets a key to its default.
    #[command(after_help = "Example:\n  penstock port set vm3 vlan=101 mac=")]
    Set(ObjectArgs),
    /// Delete a port.
    Del(NameArgs),
}

/// `penstock tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// List all tenants, or the tenants with some labels.
    List {
        #[command(flatten)]
        labels: Selectors,
        #[command(flatten)]
        json: Json,
    },
    /// Add a tenant.
    #[command(after_help = "Keys of [[tenant]]: docs/reference/configuration.md. Example:\n  \
        penstock tenant add blue vlans=200-210 fdb_limit=512")]
    Add(ObjectArgs),
    /// Change keys of a tenant. `key=` resets a key to its default.
    #[command(after_help = "Example:\n  penstock tenant set blue vlans=200-220 fdb_limit=")]
    Set(ObjectArgs),
    /// Delete a tenant. Delete the tenant's ports and rules first.
    Del(NameArgs),
}

/// `penstock flow`.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// List all rules, highest priority first.
    List(Json),
    /// Add a rule.
    #[command(after_help = "Keys of [[rule]]: docs/reference/configuration.md. Examples:\n  \
        penstock flow add no-telnet priority=200 match=proto=tcp,dst_port=23 actions=drop\n  \
        penstock flow add look port=vm1 match.dst=10.0.0.0/8 actions=mirror:tap0,normal")]
    Add(ObjectArgs),
    /// Delete a rule.
    Del(NameArgs),
}

/// Option that selects objects by their labels.
#[derive(Clone, Debug, Default, Args)]
pub struct Selectors {
    /// Only objects with this label, as KEY=VALUE, or as KEY for any value. May be repeated; all
    /// labels must match.
    #[arg(short = 'l', long = "label", value_name = "LABEL", value_parser = selector)]
    pub labels: Vec<String>,
}

/// Arguments of `add` and `set`: the name of an object, and `key=value` pairs.
#[derive(Debug, Args)]
pub struct ObjectArgs {
    /// Name of the object. For `set` also a label KEY=VALUE that only this object has.
    pub name: String,
    /// Keys and values, as in `vlan=100`. docs/reference/cli.md shows how to write lists and
    /// tables.
    #[arg(value_name = "KEY=VALUE")]
    pub pairs: Vec<String>,
    #[command(flatten)]
    pub save: Save,
}

/// Arguments of `del`: the name of the object to delete.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Name of the object. For ports and tenants also a label KEY=VALUE that only this object has.
    pub name: String,
    #[command(flatten)]
    pub save: Save,
}

/// `penstock fdb`.
#[derive(Debug, Subcommand)]
pub enum FdbCommand {
    /// List MAC addresses and their ports. Default: all addresses.
    List {
        #[command(flatten)]
        filter: FdbFilter,
        #[command(flatten)]
        json: Json,
    },
    /// Delete learned MAC addresses. Static addresses stay. Default: all learned addresses.
    Flush {
        #[command(flatten)]
        filter: FdbFilter,
        #[command(flatten)]
        json: Json,
    },
}

/// Options that select MAC addresses. An address must match all given options.
#[derive(Debug, Args)]
pub struct FdbFilter {
    /// Select addresses behind the port NAME. Default: all ports.
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
    /// Select addresses of the tenant NAME. Default: all tenants.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Select addresses of the VLAN VID (1 to 4094; 0: untagged). Default: all VLANs.
    #[arg(long, value_name = "VID", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,
}

/// `penstock stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Ports to print. Default: all.
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    #[command(flatten)]
    pub labels: Selectors,
    /// Print JSON instead of text; with --watch, one object per line.
    #[arg(long)]
    pub json: bool,
    /// Print rates every SECS seconds until interrupted (0.1 to 3600; without a number: 1).
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = interval,
        conflicts_with = "check"
    )]
    pub watch: Option<f64>,
    /// Check that the counters add up, and exit 1 if they do not. The workers read their counters
    /// between two batches.
    #[arg(long)]
    pub check: bool,
    /// Print drops by reason, and what each reason means.
    #[arg(long)]
    pub drops: bool,
    /// Print waiting times of frames, and the jitter of the RTP streams that a port's `rtp` lists,
    /// in microseconds.
    #[arg(long, conflicts_with = "drops")]
    pub delays: bool,
    /// Print the queues of ports with `egress = "wfq"`: weights, frames, drops, backlog.
    #[arg(long, conflicts_with_all = ["drops", "delays"])]
    pub queues: bool,
}

/// `penstock explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Name of the VM's port, or a label KEY=VALUE that only this port has.
    #[arg(value_name = "PORT")]
    pub port: String,
    /// Number of past seconds to examine (1 to 10).
    #[arg(
        long,
        value_name = "SECS",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=10)
    )]
    pub over: u32,
    #[command(flatten)]
    pub json: Json,
}

/// `penstock controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    #[command(subcommand)]
    pub command: ControllerCommand,
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// Unix socket of the controller. Default: /run/penstock/controller.sock, but `run` takes
    /// `[controller] socket` of its configuration file
    #[arg(
        long,
        global = true,
        env = "PENSTOCK_SOCKET",
        value_name = "PATH",
        help_heading = "Global options"
    )]
    pub socket: Option<PathBuf>,
}

/// Commands of `penstock controller`.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Plan the placement of tenants offline. Print each tenant's servers and cost, and the reason
    /// for each refusal.
    #[command(after_help = "Example:\n  penstock controller plan --topology examples/fabric.toml \
        --tenants examples/tenants.toml --picture tree.svg")]
    Plan(PlanArgs),
    /// Simulate a fabric offline with other settings. The usage of the fabric's tenants is recorded
    /// or generated. Each setting may be a list; all combinations are simulated.
    #[command(
        after_help = "Example:\n  penstock controller what-if --topology examples/fabric.toml \
        --tenants examples/tenants.toml --queues 4,8 --map static-map,per-port-map"
    )]
    WhatIf(WhatIfArgs),
    /// Check the file of a controller, the file of its datacenter, and the settings of its
    /// switches. Print every mistake. Contact no switch.
    #[command(
        after_help = "Example:\n  penstock controller check --config examples/controller.toml"
    )]
    Check {
        /// Configuration file of the controller (docs/reference/controller.md).
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Run a controller in the foreground until SIGTERM or SIGINT. SIGHUP reloads certificates.
    #[command(after_help = "Without an agent on each server no tenant gets a queue of its own.\n\
        Example:\n  penstock controller run --config examples/controller.toml")]
    Run(ControllerRunArgs),
    /// Commands for a running controller.
    #[command(flatten)]
    Ask(AskCommand),
}

/// Default socket of a controller.
pub const DEFAULT_CONTROLLER: &str = "/run/penstock/controller.sock";

/// `penstock controller run`.
#[derive(Debug, Args)]
pub struct ControllerRunArgs {
    /// Configuration file of the controller (docs/reference/controller.md).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Start in mode `observe`: decide, but configure no host and no switch. Use this option after
    /// you restored the store. `penstock controller mode active` ends mode `observe`.
    #[arg(long)]
    pub observe: bool,
    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Log filter in RUST_LOG syntax. RUST_LOG overrides it.
    #[arg(long, default_value = "info")]
    pub log: String,
}

/// Commands for a running controller.
#[derive(Debug, Subcommand)]
pub enum AskCommand {
    /// Show whether the controller leads, its mode, and the results of its last control interval.
    Status,
    /// List servers, switches and links, with the bandwidth reserved on each link.
    Topology,
    /// List tenants with guarantee, usage, score and queue.
    Tenants,
    /// List the queues of each switch port and the tenant of each queue.
    Bindings,
    /// List the latest events.
    Events,
    /// Explain why a tenant has its placement and queue.
    #[command(after_help = "Example:\n  penstock controller explain red")]
    Explain {
        /// Name of the tenant.
        tenant: String,
    },
    /// Show the frames and bytes that each queue of each switch sent, and the dropped frames.
    SwitchCounters,
    /// Place, remove or grow tenants.
    #[command(subcommand)]
    Tenant(TenantAskCommand),
    /// Put a server or switch in or out of service. Tenants leave a node that is out of service.
    #[command(after_help = "Example:\n  penstock controller service server-3 drained")]
    Service {
        /// Name of the server or switch in the topology.
        node: String,
        /// New state.
        #[arg(value_parser = [
            PossibleValue::new("in").help("In service"),
            PossibleValue::new("drained").help("Out of service for maintenance"),
            PossibleValue::new("failed").help("Out of service because of a failure"),
        ])]
        service: String,
    },
    /// Set the mode of the controllers.
    Mode {
        /// New mode.
        #[arg(value_parser = [
            PossibleValue::new("active")
                .help("Assign queues to tenants, and configure hosts and switches"),
            PossibleValue::new("observe")
                .help("Assign queues to tenants, but configure no host or switch"),
            PossibleValue::new("hold").help("Keep the current binding of tenants to queues"),
        ])]
        mode: String,
    },
    /// Roll back to the previous binding of tenants to queues. Set mode `hold`, which keeps the
    /// restored binding.
    Revert,
    /// Raise the epoch, the first number of each decision. Hosts and switches refuse a lower epoch.
    /// Use this command after you restored or recreated the store.
    Epoch {
        /// Lowest epoch of future decisions (1 to 2^62). If hosts have later decisions than the
        /// controller, `status` prints the number to use.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        at_least: u64,
    },
}

/// `penstock controller tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantAskCommand {
    /// Place the tenants of a file, in the file's order. Exit 1 if a tenant is refused.
    #[command(after_help = "Example:\n  penstock controller tenant add examples/tenants.toml")]
    Add {
        /// File with the tenants (docs/reference/fabric.md).
        file: PathBuf,
    },
    /// Remove a tenant, its placement and its queue.
    Remove {
        /// Name of the tenant.
        name: String,
    },
    /// Give a tenant more VMs.
    #[command(after_help = "Example:\n  penstock controller tenant grow red 4 --may-move")]
    Grow {
        /// Name of the tenant.
        name: String,
        /// Number of VMs to add.
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        more: u32,
        /// Class of the new VMs: position in the tenant's list of classes, from 0.
        #[arg(long, value_name = "N", default_value_t = 0)]
        class: u32,
        /// Allow existing VMs to move.
        #[arg(long)]
        may_move: bool,
    },
}

/// Options that name the files of a datacenter and its tenants.
#[derive(Debug, Args)]
pub struct FabricFiles {
    /// File that describes the datacenter (docs/reference/fabric.md).
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// File with the tenants, in the order of their arrival.
    #[arg(long, value_name = "FILE")]
    pub tenants: PathBuf,
}

/// `penstock controller plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub files: FabricFiles,
    /// Draw the tree, coloured by load, into an SVG file.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

/// `penstock controller what-if`. If options have several values, the command simulates all
/// combinations of these values.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    #[command(flatten)]
    pub files: FabricFiles,
    /// File of recorded usage, with lines of `interval,tenant,used_pct`. Default: generated usage.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["intervals", "inactive", "seed"])]
    pub usage: Option<PathBuf>,
    /// Number of intervals to generate (1 to 100000).
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub intervals: u32,
    /// Share of tenants that use less than their guarantee in an interval (0 to 1).
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = part)]
    pub inactive: f64,
    /// Seed of the generated usage.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of queues per port, with the shared queue (2 to 64). Default: as in the topology
    /// file.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(2..=64)
    )]
    pub queues: Vec<u8>,
    /// How switches map code points to queues. Default: static-map.
    #[arg(long, value_name = "MAP,...", value_delimiter = ',', value_enum)]
    pub map: Vec<MapMode>,
    /// Weight of queues relative to bandwidth in placement (0 to 1). Default: as in the topology
    /// file.
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = part)]
    pub queue_weight: Vec<f64>,
    /// Over-subscription of the highest tier; 4 means 4:1. Default: as in the topology file.
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', value_parser = ratio)]
    pub oversubscription: Vec<f64>,
}

/// How switches map code points to queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapMode {
    /// All ports have the same map of code points to queues.
    #[value(name = "static-map")]
    Static,
    /// Each ingress port maps code points to traffic classes. Each egress port maps traffic classes
    /// to queues.
    #[value(name = "per-port-map")]
    PerPort,
    /// Each egress port has its own map of code points to queues.
    #[value(name = "per-egress-map")]
    PerEgress,
}

impl MapMode {
    /// Name of the mode on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static-map",
            Self::PerPort => "per-port-map",
            Self::PerEgress => "per-egress-map",
        }
    }
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("write a number from 0 to 1".to_owned()),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && ratio > 0.0 => Ok(ratio),
        _ => Err("write a ratio above 0, such as 4 for 4:1".to_owned()),
    }
}

/// `penstock top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two readings (0.1 to 3600).
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = interval)]
    pub interval: f64,
    /// Print N readings as text, then exit. Default: show the live view; without a terminal, print
    /// text until interrupted.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0.1 to 3600".to_owned()),
    }
}

/// Converts an interval of 0.1 to 3600 seconds, which [`interval`] has checked, to milliseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "100 to 3,600,000")]
#[must_use]
pub fn interval_ms(seconds: f64) -> u32 {
    (seconds * 1000.0).round().clamp(100.0, 3_600_000.0) as u32
}

#[cfg(test)]
mod tests;
