//! Requests to a running host: objects as TOML, keys and values as text, in any order.
//!
//! **Rule.** The requests go to a real host with a worker, session threads and sockets in a private
//! directory. The target turns every port into a vhost-user port in this directory, so no input
//! reaches an interface or a path of the machine. A refused request changes nothing. After an
//! accepted request, the host's configuration is valid when it is parsed again. The switch's
//! counters always add up.

use std::path::PathBuf;
use std::sync::OnceLock;

use penstock_control::config::{self, Port, VhostUser};
use penstock_control::host::{ApiError, FdbFilter, Host};

use crate::input::Input;

/// Maximum number of requests in one input.
const REQUESTS_MAX: usize = 24;
const NAMES: [&str; 6] = ["a", "b", "vm1", "red", "", "no such thing"];
const KEYS: [&str; 16] = [
    "vlan",
    "trunk",
    "native",
    "mac",
    "ip",
    "tenant",
    "queues",
    "offloads",
    "slow_path",
    "vlans",
    "fdb_limit",
    "mode",
    "socket_mode",
    "name",
    "mtu",
    "priority",
];

struct Live {
    directory: PathBuf,
    host: Host,
}

fn live() -> &'static Live {
    static LIVE: OnceLock<Live> = OnceLock::new();
    LIVE.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("penstock-fuzz-{}", std::process::id()));
        let text = "[host]\nname = \"fuzz\"\n[worker]\nidle_backoff_us = 1000\n";
        let config = config::parse(text, "").expect("a right configuration");
        let host = Host::start(config, None).expect("a worker");
        Live { directory, host }
    })
}

/// Runs the target on one input.
///
/// # Panics
/// Panics if a property of the target does not hold.
pub fn run(data: &[u8]) {
    let live = live();
    std::fs::create_dir_all(&live.directory).expect("a directory");
    let mut input = Input::new(data);
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        live.request(&mut input);
    }
    let stats = live.host.stats(true).expect("a worker");
    assert!(stats.violations.is_empty(), "{:?}", stats.violations);
    live.clear();
}

impl Live {
    fn request(&self, input: &mut Input<'_>) {
        let host = &self.host;
        let before = host.config_toml();
        let outcome = match input.below(12) {
            0 | 1 => self.port(input).map(|port| host.add_port(port, false)),
            2 => object(input).map(|tenant| host.add_tenant(tenant, false)),
            3 => object(input).map(|rule| host.add_rule(rule, false)),
            4 | 5 => {
                let (name, changes) = (name(input), changes(input));
                Some(host.set_port(&name, &changes, false))
            }
            6 => {
                let (name, changes) = (name(input), changes(input));
                Some(host.set_tenant(&name, &changes, false))
            }
            7 => Some(host.del_port(&name(input), false)),
            8 => Some(host.del_tenant(&name(input), false)),
            9 => Some(host.del_rule(&name(input), false)),
            10 => {
                let filter = FdbFilter {
                    tenant: input.bool().then(|| name(input)),
                    vlan: input.bool().then(|| input.u16()),
                    port: input.bool().then(|| name(input)),
                };
                let _ = (host.fdb(&filter), host.fdb_flush(&filter));
                None
            }
            _ => {
                let _ = (host.status(), host.ports(), host.flows());
                None
            }
        };
        self.check(&before, outcome.map(|o| o.map(|_| ())));
    }

    fn check(&self, before: &str, outcome: Option<Result<(), ApiError>>) {
        let after = self.host.config_toml();
        match outcome {
            Some(Ok(())) => {
                let text =
                    config::parse(&after, "after").unwrap_or_else(|e| panic!("{e}\n{after}"));
                let running = self.host.config();
                assert_eq!((&text.ports, &text.rules), (&running.ports, &running.rules));
                crate::config::check_right(&running);
            }
            Some(Err(error)) => {
                assert_eq!(before, after, "a refused request changed the host: {error}");
                assert!(!error.problem.is_empty() && !error.object.is_empty(), "{error:?}");
            }
            None => assert_eq!(before, after, "a read request changed the configuration"),
        }
    }

    /// Returns the input's port, with its socket moved to the target's directory.
    fn port(&self, input: &mut Input<'_>) -> Option<Port> {
        let file = self.directory.join(format!("{}.sock", input.u8() % 4));
        let port: Port = toml::from_str(&config::current_port(&text(input))).ok()?;
        let before = port.vhost_user.unwrap_or_else(|| VhostUser::new(&file));
        let vhost_user = Some(VhostUser { socket: file, ..before });
        Some(Port { vhost_user, tap: None, packet: None, xdp: None, ..port })
    }

    /// Deletes all objects of the host.
    fn clear(&self) {
        let gone = |outcome: Result<_, ApiError>| assert!(outcome.is_ok(), "{outcome:?}");
        self.host.rules().iter().for_each(|r| gone(self.host.del_rule(&r.name, false)));
        self.host.port_configs().iter().for_each(|p| gone(self.host.del_port(&p.name, false)));
        self.host.tenants().iter().for_each(|t| gone(self.host.del_tenant(&t.name, false)));
        // The directory is empty if every deleted port removed its socket.
        std::fs::remove_dir(&self.directory).expect("a deleted port left its socket behind");
    }
}

fn text(input: &mut Input<'_>) -> String {
    let len = usize::from(input.u8());
    String::from_utf8_lossy(input.slice(len)).into_owned()
}

fn object<T: serde::de::DeserializeOwned>(input: &mut Input<'_>) -> Option<T> {
    toml::from_str(&text(input)).ok()
}

/// Whether a key's value could name a path or interface outside the target's directory.
fn is_kept(key: &str) -> bool {
    let (table, key) = key.split_once('.').unwrap_or(("", key));
    let attachments =
        ["type", "socket", "interface", "netns", "vhost-user", "tap", "packet", "xdp"];
    ["tap", "packet", "xdp"].contains(&table) || attachments.contains(&key)
}

fn name(input: &mut Input<'_>) -> String {
    let pick = input.below(NAMES.len() + 1);
    NAMES.get(pick).map_or_else(|| text(input), |name| (*name).to_owned())
}

fn changes(input: &mut Input<'_>) -> Vec<(String, String)> {
    let count = input.below(4);
    let change = |input: &mut Input<'_>| {
        let pick = input.below(KEYS.len() + 1);
        let key = KEYS.get(pick).map_or_else(|| text(input), |key| (*key).to_owned());
        (key, text(input))
    };
    let all = (0..count).map(|_| change(input));
    all.filter(|(key, _)| !is_kept(key)).collect()
}
