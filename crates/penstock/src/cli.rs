//! The command line's grammar. What a command does is in [`crate::verbs`] and [`crate::daemon`].

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use penstock_control::config::SCHEMAS;

/// Where the daemon's socket is unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/penstock/host.sock";

/// A user-space virtual switch for multi-tenant hosts.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Socket of the daemon. Default /run/penstock/host.sock; for `host run`, the configuration
    /// file's `[host] socket`.
    #[arg(
        long,
        global = true,
        env = "PENSTOCK_SOCKET",
        value_name = "PATH",
        help_heading = "Global options"
    )]
    pub socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// The switch on this host: run it, look at it, check and reload its configuration.
    #[command(subcommand)]
    Host(HostCommand),
    /// Ports: attachments of virtual machines, namespaces and interfaces.
    #[command(subcommand)]
    Port(PortCommand),
    /// Tenants: owners of ports and networks.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Flow rules: matches and actions with priorities.
    #[command(subcommand)]
    Flow(FlowCommand),
    /// The forwarding data base: which MAC address lives behind which port.
    #[command(subcommand)]
    Fdb(FdbCommand),
    /// Counters and rates of ports.
    Stats(StatsArgs),
    /// Live view of ports and workers.
    Top(TopArgs),
    /// Says what limits a port's rate now, with numbers, and who uses its core.
    Explain(ExplainArgs),
    /// The fabric: what its controller would do with a datacenter and its tenants.
    Controller(ControllerArgs),
    /// Virtual processors of this host: deadlines and shares for their threads.
    #[command(subcommand)]
    Vcpu(VcpuCommand),
    /// Gives network namespaces a NIC on a vhost-user port, kernel stack included.
    Endpoint(penstock_guest::endpoint::EndpointArgs),
    /// Measures what a frame costs on this host, and writes the cost model.
    Calibrate(crate::calibrate::CalibrateArgs),
    /// Was the experiments, which are `penstock-lab` now.
    #[command(hide = true, disable_help_flag = true)]
    Lab(Moved),
    /// Was the benchmarks, which are `penstock-lab bench` now.
    #[command(hide = true, disable_help_flag = true)]
    Bench(Moved),
    /// Takes down what `calibrate` made, when its end of the pipe closes.
    #[command(name = penstock_guest::bed::guard::VERB, hide = true)]
    Guard,
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// The words behind a command that is another program's by now.
#[derive(Clone, Debug, Args)]
#[command(disable_version_flag = true)]
pub struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Moved {
    /// One line that says where `penstock NAME` went.
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

/// Output as JSON.
#[derive(Clone, Copy, Debug, Args)]
pub struct Json {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Whether a change is written to the configuration file.
#[derive(Clone, Copy, Debug, Args)]
pub struct Save {
    /// Leave the configuration file alone: the change is gone at the next reload or restart.
    #[arg(long)]
    pub no_save: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `penstock host`.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// Runs the switch in the foreground until SIGTERM; SIGHUP reloads the configuration.
    Run(RunArgs),
    /// Checks a configuration file: prints every mistake, and whether this host has what its ports
    /// bought; changes nothing.
    Check {
        /// The file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Shows what the daemon is and does.
    Show(Json),
    /// Prints the configuration in force, or rewrites a file of an older release.
    Config {
        /// Rewrite this file with the keys of today; its comments and order stay. Needs no daemon.
        #[arg(long, value_name = "FILE")]
        migrate: Option<PathBuf>,
    },
    /// Has the daemon read its configuration file again; a wrong file is refused whole.
    Reload(Json),
    /// Prints the JSON schema of a configuration file.
    Schema {
        /// Kind of file: the host's, a controller's, its datacenter's or tenants', or that of
        /// `penstock vcpu run`.
        #[arg(value_name = "KIND", default_value = "host", value_parser = schema_kinds())]
        kind: String,
    },
    /// Makes descriptors in network namespaces and gives sockets to their owners, for a switch that
    /// may not do so itself. A service manager starts it with its socket (penstock-helper.socket).
    Helper {
        /// Form of the log on standard error.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
}

fn schema_kinds() -> PossibleValuesParser {
    SCHEMAS.map(|(kind, _)| kind).into()
}

/// `penstock host run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Stay in the foreground: the only way there is, for service managers and people alike.
    #[arg(long)]
    pub foreground: bool,
    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text an event.
    Text,
    /// A JSON object an event.
    Json,
}

/// `penstock vcpu`.
#[derive(Debug, Subcommand)]
pub enum VcpuCommand {
    /// Schedules vCPUs in the foreground until SIGTERM; all is put back as it was at the end.
    /// SIGHUP reloads the configuration.
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Form of the log on standard error.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
    /// Reads a configuration file and prints every mistake in it, and every deadline that does not
    /// fit. Needs no scheduler.
    Check {
        /// The file: of this scheduler's own, or a host's with `[vcpu]`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Shows shares, waits and missed deadlines of the scheduler that runs.
    Show {
        /// Its directory.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
        #[command(flatten)]
        json: Json,
    },
    /// Has the scheduler read its configuration file again; a wrong file is refused whole.
    Reload {
        /// Its directory.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Says that something came for a VM from outside, which it is to answer within its deadline.
    Event {
        /// The VM.
        vm: String,
        /// The scheduler's directory.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// Puts right what a scheduler that died left behind; `run` begins with it.
    Sweep {
        /// Its directory.
        #[arg(long, value_name = "DIR", default_value = penstock_vcpu_host::config::RUN_DIR)]
        run_dir: PathBuf,
    },
    /// What `run` starts beside itself: takes back what a dead or stalled scheduler lent.
    #[command(hide = true)]
    Watchdog {
        /// The scheduler's directory.
        #[arg(long, value_name = "DIR")]
        run_dir: PathBuf,
    },
}

/// `penstock port`.
#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// Lists all ports.
    List(Json),
    /// Shows one port: state, features, rings, configuration.
    Show {
        /// The port.
        name: String,
        #[command(flatten)]
        json: Json,
    },
    /// Adds a port.
    #[command(
        after_help = "The keys are those of [[port]] in the configuration file. Example:\n  \
        penstock port add vm3 vhost-user.socket=/run/p/vm3.sock tenant=red vlan=100 \
        mac=52:54:00:00:00:03"
    )]
    Add(ObjectArgs),
    /// Changes keys of a port; `key=` takes a key back to its default.
    #[command(after_help = "Example:\n  penstock port set vm3 vlan=101 mac=")]
    Set(ObjectArgs),
    /// Deletes a port.
    Del(NameArgs),
}

/// `penstock tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Lists all tenants.
    List(Json),
    /// Adds a tenant.
    #[command(
        after_help = "The keys are those of [[tenant]] in the configuration file. Example:\n  \
        penstock tenant add blue vlans=200-210 fdb_limit=512"
    )]
    Add(ObjectArgs),
    /// Changes keys of a tenant; `key=` takes a key back to its default.
    Set(ObjectArgs),
    /// Deletes a tenant that no port belongs to.
    Del(NameArgs),
}

/// `penstock flow`.
#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// Lists all rules, highest priority first.
    List(Json),
    /// Adds a rule.
    #[command(
        after_help = "The keys are those of [[rule]] in the configuration file. Examples:\n  \
        penstock flow add no-telnet priority=200 match=proto=tcp,dst_port=23 actions=drop\n  \
        penstock flow add mirror port=vm1 match.dst=10.0.0.0/8 actions=output:vm2,output:tap0"
    )]
    Add(ObjectArgs),
    /// Deletes a rule.
    Del(NameArgs),
}

/// A name and `key=value` pairs.
#[derive(Debug, Args)]
pub struct ObjectArgs {
    /// Its name.
    pub name: String,
    /// Its keys.
    #[arg(value_name = "KEY=VALUE")]
    pub pairs: Vec<String>,
    #[command(flatten)]
    pub save: Save,
}

/// A name.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// Its name.
    pub name: String,
    #[command(flatten)]
    pub save: Save,
}

/// `penstock fdb`.
#[derive(Debug, Subcommand)]
pub enum FdbCommand {
    /// Lists all addresses.
    List {
        #[command(flatten)]
        filter: FdbFilter,
        #[command(flatten)]
        json: Json,
    },
    /// Forgets learned addresses; static ones stay. Without a filter: all of them.
    Flush {
        #[command(flatten)]
        filter: FdbFilter,
        #[command(flatten)]
        json: Json,
    },
}

/// Which addresses: those that match every given option.
#[derive(Debug, Args)]
pub struct FdbFilter {
    /// Only those behind this port.
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
    /// Only those of this tenant.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only those of this VLAN; 0 is untagged.
    #[arg(long, value_name = "VID", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,
}

/// `penstock stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Only these ports.
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    /// Print JSON, with --watch one object a line.
    #[arg(long)]
    pub json: bool,
    /// Print rates every so many seconds, 0.1 to 3600, until interrupted.
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = interval,
        conflicts_with = "check"
    )]
    pub watch: Option<f64>,
    /// Have the workers read between two batches; exit 1 if the counters do not add up.
    #[arg(long)]
    pub check: bool,
    /// Print drops by reason, with what to do about them.
    #[arg(long)]
    pub drops: bool,
    /// Print how long frames waited, and the jitter of marked RTP streams.
    #[arg(long, conflicts_with = "drops")]
    pub delays: bool,
    /// Print the queues of ports with `egress = "wfq"`: weights, frames, drops, what waits.
    #[arg(long, conflicts_with_all = ["drops", "delays"])]
    pub queues: bool,
}

/// `penstock explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The port of the virtual machine.
    #[arg(value_name = "PORT")]
    pub port: String,
    /// By the last so many seconds, 1 to 10.
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
    /// What.
    #[command(subcommand)]
    pub command: ControllerCommand,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// `penstock controller`'s commands.
#[derive(Debug, Subcommand)]
pub enum ControllerCommand {
    /// Says which tenant would go where, what that costs, and why others have no place.
    #[command(after_help = "Example:\n  penstock controller plan --topology examples/fabric.toml \
        --tenants examples/tenants.toml --picture tree.svg")]
    Plan(PlanArgs),
    /// Replays usage against other queues, maps, weights or over-subscriptions.
    #[command(
        after_help = "Example:\n  penstock controller what-if --topology examples/fabric.toml \
        --tenants examples/tenants.toml --queues 4,8 --map static-map,per-port-map"
    )]
    WhatIf(WhatIfArgs),
    /// Runs a controller in the foreground until SIGTERM.
    Run(ControllerRunArgs),
    /// What a running controller is asked.
    #[command(flatten)]
    Ask(AskCommand),
}

/// Where the controller's socket is unless said otherwise.
pub const DEFAULT_CONTROLLER: &str = "/run/penstock/controller.sock";

/// `penstock controller run`.
#[derive(Debug, Args)]
pub struct ControllerRunArgs {
    /// The controller's file: docs/controller.md.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Begin in mode `observe`, whatever the store says: decide, and tell nobody, until
    /// `penstock controller mode active`. For a store that was restored.
    #[arg(long)]
    pub observe: bool,
    /// Form of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// What is logged, as in RUST_LOG, which wins.
    #[arg(long, default_value = "info")]
    pub log: String,
}

/// What a running controller is asked; `--socket` names another than the usual one.
#[derive(Debug, Subcommand)]
pub enum AskCommand {
    /// Whether it leads, and what its last interval did.
    Status,
    /// Servers, switches and links, with what is reserved.
    Topology,
    /// Tenants, with guarantee, use, score and queue.
    Tenants,
    /// Which tenant has which queue of which port.
    Bindings,
    /// What happened last.
    Events,
    /// Why a tenant has what it has.
    Explain {
        /// The tenant.
        tenant: String,
    },
    /// What the switches' queues have sent.
    SwitchCounters,
    /// Places, removes or grows tenants.
    #[command(subcommand)]
    Tenant(TenantAskCommand),
    /// Puts a server or switch in or out of service; who is there moves.
    Service {
        /// Its name in the topology.
        node: String,
        /// What it is to be.
        #[arg(value_parser = ["in", "drained", "failed"])]
        service: String,
    },
    /// Lets controllers act, only observe, or hold queues as they are.
    Mode {
        /// Which.
        #[arg(value_parser = ["active", "observe", "hold"])]
        mode: String,
    },
    /// Goes back to the binding before the one in force, and holds it.
    Revert,
    /// Raises the epoch of decisions, after the store was restored or made new.
    Epoch {
        /// Lowest epoch that decisions have from now on (1 to 2^62); `status` shows which one hosts
        /// need.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        at_least: u64,
    },
}

/// `penstock controller tenant`.
#[derive(Debug, Subcommand)]
pub enum TenantAskCommand {
    /// Places the tenants of a file, in its order. Exit 1 if one has no place.
    Add {
        /// The file: docs/fabric.md.
        file: PathBuf,
    },
    /// Takes a tenant away.
    Remove {
        /// Its name.
        name: String,
    },
    /// Gives a tenant more VMs.
    Grow {
        /// Its name.
        name: String,
        /// How many more.
        more: u32,
        /// The kind of VMs, from 0.
        #[arg(long, default_value_t = 0)]
        class: u32,
        /// It may be placed anew.
        #[arg(long)]
        may_move: bool,
    },
}

/// A datacenter and its tenants.
#[derive(Debug, Args)]
pub struct FabricFiles {
    /// The datacenter.
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// Its tenants, in the order in which they come.
    #[arg(long, value_name = "FILE")]
    pub tenants: PathBuf,
}

/// `penstock controller plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub files: FabricFiles,
    /// Draw the tree, coloured by load, as SVG.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

/// `penstock controller what-if`. All combinations of the lists are tried.
#[derive(Debug, Args)]
pub struct WhatIfArgs {
    #[command(flatten)]
    pub files: FabricFiles,
    /// Recorded usage: lines of `interval,tenant,used_pct`; else it is made up.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["intervals", "inactive", "seed"])]
    pub usage: Option<PathBuf>,
    /// Intervals to make up.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub intervals: u32,
    /// The part of the tenants, 0 to 1, that uses less than its guarantee in an interval.
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = part)]
    pub inactive: f64,
    /// The seed of what is made up.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Queues of a port, the shared one included; default: the file's.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(2..=64)
    )]
    pub queues: Vec<u8>,
    /// How code points become queues; default: static-map.
    #[arg(long, value_name = "MAP,...", value_delimiter = ',', value_enum)]
    pub map: Vec<MapMode>,
    /// What queues weigh against bandwidth in placement, 0 to 1; default: the file's.
    #[arg(long, value_name = "PART,...", value_delimiter = ',', value_parser = part)]
    pub queue_weight: Vec<f64>,
    /// Over-subscription of the highest tier, as 4 for 4:1; default: the file's.
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', value_parser = ratio)]
    pub oversubscription: Vec<f64>,
    #[command(flatten)]
    pub json: Json,
}

/// How switches get from a code point to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MapMode {
    /// One map for all ports.
    #[value(name = "static-map")]
    Static,
    /// Maps by port: class where a packet comes in, queue where it goes out.
    #[value(name = "per-port-map")]
    PerPort,
    /// A map of its own for each port going out.
    #[value(name = "per-egress-map")]
    PerEgress,
}

impl MapMode {
    /// Its name on the command line.
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
        _ => Err("a number from 0 to 1 is wanted".to_owned()),
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && ratio > 0.0 => Ok(ratio),
        _ => Err("a ratio above 0 is wanted, as 4 for 4:1".to_owned()),
    }
}

/// `penstock top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two readings, 0.1 to 3600.
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = interval)]
    pub interval: f64,
    /// Print this many readings as text and end; unlimited on a terminal.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.1 to 3600 is wanted".to_owned()),
    }
}

/// Milliseconds of an interval that [`interval`] admitted.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "100 to 3,600,000")]
#[must_use]
pub fn interval_ms(seconds: f64) -> u32 {
    (seconds * 1000.0).round().clamp(100.0, 3_600_000.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_grammar_has_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_of_the_design_parses() {
        for line in [
            "penstock host run --config h.toml --foreground --log-format json",
            "penstock host check --config h.toml --json",
            "penstock host show",
            "penstock host config",
            "penstock host reload --json",
            "penstock host schema",
            "penstock host schema controller",
            "penstock port list --json",
            "penstock port show vm1",
            "penstock port add vm3 vhost-user.socket=/run/p/vm3.sock vlan=100 --no-save",
            "penstock port set vm3 vlan=101 mac=",
            "penstock port del vm3",
            "penstock tenant list",
            "penstock tenant add red vlans=[1,5-9]",
            "penstock tenant set red fdb_limit=10",
            "penstock tenant del red",
            "penstock flow list",
            "penstock flow add web priority=9 match=dst_port=80 actions=drop",
            "penstock flow del web",
            "penstock fdb list --tenant red --json",
            "penstock fdb flush --port vm1 --vlan 0",
            "penstock stats vm1 vm2 --drops",
            "penstock stats vm1 --delays",
            "penstock stats up --queues",
            "penstock stats --watch 0.5",
            "penstock stats --watch",
            "penstock stats --check",
            "penstock top --interval 2",
            "penstock explain vm1 --over 5 --json",
            "penstock endpoint --create-netns --nic socket=/tmp/a.sock,netns=a,ip=10.0.0.1/24",
            "penstock guard",
            "penstock calibrate --quick --out model.toml",
            "penstock calibrate --rounds 9 --out - --worker-core 1",
            "penstock completions bash",
            "penstock controller plan --topology f.toml --tenants t.toml --picture t.svg --json",
            "penstock controller what-if --topology f.toml --tenants t.toml --queues 4,8",
            "penstock controller what-if --topology f --tenants t --usage u.csv --map static-map",
            "penstock --socket /tmp/x port list",
            "penstock port list --socket /tmp/x",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).unwrap_err());
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for line in [
            "penstock host run",
            "penstock port add",
            "penstock stats --watch 0",
            "penstock explain",
            "penstock explain vm1 --over 11",
            "penstock stats --watch 1 --check",
            "penstock fdb flush --vlan 4095",
            "penstock port frobnicate",
            "penstock controller plan --topology f.toml",
            "penstock controller what-if --topology f --tenants t --inactive NaN",
            "penstock controller what-if --topology f --tenants t --oversubscription 0",
            "penstock controller what-if --topology f --tenants t --usage u --seed 2",
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn what_is_another_programs_by_now_names_it() {
        for (line, now) in [
            ("penstock lab run c2qos-fig5 --json -", "`penstock-lab run`"),
            ("penstock lab endpoint --create-netns", "`penstock endpoint`"),
            ("penstock lab --help", "`penstock-lab`"),
            ("penstock lab", "`penstock-lab`"),
            ("penstock bench v2v --version --peer ovs-dpdk", "`penstock-lab bench v2v`"),
        ] {
            let said = match parse(line).unwrap().command {
                Command::Lab(moved) => moved.text("lab"),
                Command::Bench(moved) => moved.text("bench"),
                other => panic!("{line}: {other:?}"),
            };
            assert!(said.contains(&format!("is {now} now")), "{line}: {said}");
        }
    }

    #[test]
    fn an_interval_is_whole_milliseconds() {
        assert_eq!(interval_ms(0.1), 100);
        assert_eq!(interval_ms(1.2345), 1235);
    }
}
