//! The command line's grammar. What a command does is in [`crate::verbs`] and [`crate::daemon`].

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

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
    /// Guests, load and endpoints for experiments.
    #[command(subcommand)]
    Lab(penstock_lab::cli::LabCommand),
    /// Benchmarks of this switch, and of others beside it.
    #[command(subcommand)]
    Bench(penstock_lab::bench::BenchCommand),
    /// Measures what a frame costs on this host, and writes the cost model.
    Calibrate(penstock_lab::bench::calibrate::CalibrateArgs),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
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
    /// Prints the configuration in force.
    Config,
    /// Has the daemon read its configuration file again; a wrong file is refused whole.
    Reload(Json),
    /// Prints the JSON schema of the configuration file.
    Schema,
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
        penstock port add vm3 type=vhost-user socket=/run/p/vm3.sock tenant=red vlan=100 \
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
            "penstock port list --json",
            "penstock port show vm1",
            "penstock port add vm3 type=vhost-user socket=/run/p/vm3.sock vlan=100 --no-save",
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
            "penstock stats --watch 0.5",
            "penstock stats --watch",
            "penstock stats --check",
            "penstock top --interval 2",
            "penstock explain vm1 --over 5 --json",
            "penstock bench v2v --peer ovs-dpdk --sizes 64,imix --flows 1,1000 --json -",
            "penstock bench tcp --peer ovs-dpdk --streams 1,4 --offloads on --secs 2",
            "penstock bench rr --sizes 64,1518 --runs 3",
            "penstock bench loss --soak 600 --at 80 --no-search",
            "penstock bench guard",
            "penstock calibrate --quick --out model.toml",
            "penstock calibrate --rounds 9 --out - --worker-core 1",
            "penstock completions bash",
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
            "penstock bench v2v --sizes 63",
            "penstock bench v2v --flows 0",
            "penstock bench loss --no-search",
            "penstock bench loss --at 101",
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn an_interval_is_whole_milliseconds() {
        assert_eq!(interval_ms(0.1), 100);
        assert_eq!(interval_ms(1.2345), 1235);
    }
}
