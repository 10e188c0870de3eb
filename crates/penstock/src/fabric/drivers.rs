//! Creates a switch's driver from the controller's file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use penstock_controller::fabric_state::Fabric;
use penstock_controller::files::{
    ControllerFile, DriverFile, LoginFile, PenstockFile, SonicFile, SwitchFile, SwitchTls,
};
use penstock_controller::southbound::gnmi::{self, GnmiSwitch};
use penstock_controller::southbound::linux_tc::{self, Netns, TcSwitch};
use penstock_controller::southbound::penstock::{self, PenstockSwitch};
use penstock_controller::southbound::sonic::{self, Endpoint, MapMode, Reference, SonicSwitch};
use penstock_controller::southbound::{Capabilities, ONE_STEP, PortInfo, SimSwitch, SwitchDriver};
use penstock_fabric::queue_binding::Mode;
use penstock_fabric::topology::NodeId;
use penstock_units::BitsPerSecond;

/// Directory of the locks, which keep two controllers on this machine from driving the same switch.
const LOCKS: &str = "/run/penstock";

/// Creates the driver of a switch. The creation of a driver sends nothing to the switch.
///
/// # Errors
/// Returns an error if the settings do not fit the driver, or a certificate file cannot be read.
pub fn driver(
    file: &ControllerFile,
    fabric: &Fabric,
    node: NodeId,
    switch: &SwitchFile,
) -> Result<Arc<dyn SwitchDriver>> {
    let topology = fabric.topology();
    let name = topology.name(node).to_string();
    let mut ports = Vec::new();
    for port in fabric.ports_of(node) {
        let far = if port.up { topology.parent(port.link) } else { topology.child(port.link) };
        let interfaces = switch.interfaces.get(&far).cloned().unwrap_or_default();
        // Several cables share the link's rate evenly.
        let cables = u64::try_from(interfaces.len().max(1)).unwrap_or(u64::MAX);
        let rate = BitsPerSecond(topology.rate(port.link).0 / cables);
        ports.extend(interfaces.into_iter().map(|name| PortInfo { name, rate }));
    }
    let queues = file.binding.queues;
    Ok(match &switch.driver {
        DriverFile::Sim => {
            let classes = match file.binding.mode {
                Mode::PerEgressMap => ONE_STEP,
                Mode::StaticMap | Mode::PerPortMap => queues.max(8),
            };
            Arc::new(SimSwitch::new(&name, Capabilities::new(queues, classes), &ports))
        }
        DriverFile::LinuxTc { netns } => {
            let locks = Path::new(LOCKS);
            let runner =
                netns.as_ref().map_or_else(|| Netns::own(locks), |netns| Netns::new(netns, locks));
            let settings = linux_tc::Settings { queues, ..linux_tc::Settings::default() };
            let made = TcSwitch::new(&name, &ports, settings, Arc::new(runner));
            Arc::new(made?)
        }
        DriverFile::Sonic(at) => sonic(file, &name, &ports, at)?,
        DriverFile::Penstock(at) => {
            let address = match at.clone() {
                PenstockFile::Socket(path) => penstock::Address::Socket(path),
                PenstockFile::Tcp { address, ca, cert, key, server_name } => {
                    let tls = penstock::Tls { ca, certificate: cert, key, server_name };
                    penstock::Address::Tcp(address, tls)
                }
            };
            Arc::new(PenstockSwitch::new(&name, &ports, queues, address)?)
        }
        DriverFile::Gnmi { address, tls, login, set_ms } => {
            let wait = Duration::from_millis(*set_ms);
            gnmi(file, &name, &ports, (address, tls.as_ref(), login.as_ref(), wait))?
        }
    })
}

fn sonic(
    file: &ControllerFile,
    name: &str,
    ports: &[PortInfo],
    at: &SonicFile,
) -> Result<Arc<dyn SwitchDriver>> {
    let address = &at.address;
    let endpoint = if let Some(path) = address.strip_prefix("unix://") {
        Endpoint::Unix(path.into())
    } else {
        let tcp = address.strip_prefix("redis://").and_then(|rest| rest.rsplit_once(':'));
        let tcp = tcp.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        let (host, port) = tcp.with_context(|| {
            format!(
                "switch {name}: address `{address}` is not valid; write redis://HOST:PORT or \
                 unix:///PATH"
            )
        })?;
        Endpoint::Tcp(host, port)
    };
    let values = file.binding.palette.values().iter().copied();
    let mode = match file.binding.mode {
        Mode::StaticMap => MapMode::Static(values.zip(1..file.binding.queues).collect()),
        Mode::PerPortMap => MapMode::PerPort,
        Mode::PerEgressMap => anyhow::bail!(
            "switch {name}: SONiC maps DSCPs at the ingress port; write `map = \
             \"per-port-map\"` or \"static-map\""
        ),
    };
    let queues = file.binding.queues;
    if let Some(path) = &at.password {
        text(name, path)?;
    }
    let default = sonic::Settings::default();
    let settings = sonic::Settings {
        mode,
        reference: if at.bracketed { Reference::Bracketed } else { Reference::Plain },
        queues,
        tenant_queues: at.tenant_queues.clone(),
        control_queue: at.control_queue,
        classes: at.classes.unwrap_or(default.classes),
        settle: at.settle_ms.map_or(default.settle, Duration::from_millis),
        password_file: at.password.clone(),
    };
    let switch = SonicSwitch::new(name, ports, settings, endpoint);
    Ok(Arc::new(switch?))
}

/// Reads a file named in a switch's settings. Errors name the switch and the file.
fn text(switch: &str, path: &Path) -> Result<String> {
    let read = std::fs::read_to_string(path);
    read.with_context(|| format!("switch {switch}: file {}", path.display()))
}

fn gnmi(
    file: &ControllerFile,
    name: &str,
    ports: &[PortInfo],
    (address, tls, login, set_wait): (&str, Option<&SwitchTls>, Option<&LoginFile>, Duration),
) -> Result<Arc<dyn SwitchDriver>> {
    if file.binding.mode != Mode::StaticMap {
        bail!("switch {name}: gNMI has one map for all ports; write `map = \"static-map\"`");
    }
    let (tls_files, login_file) = (tls.cloned(), login.cloned());
    let switch = name.to_owned();
    let read = move || credentials(&switch, tls_files.as_ref(), login_file.as_ref());
    let (tls, login) = read()?;
    let (address, queues) = (address.to_owned(), file.binding.queues);
    let settings = gnmi::Settings { address, tls, login, queues, set_wait };
    let made = GnmiSwitch::new(name, ports, settings)?;
    Ok(Arc::new(made.with_source(Arc::new(move || read().map_err(|error| format!("{error:#}"))))))
}

/// Reads the certificates and the password of a gNMI target from their files.
fn credentials(
    switch: &str,
    tls: Option<&SwitchTls>,
    login: Option<&LoginFile>,
) -> Result<gnmi::Credentials> {
    let text = |path: &Path| text(switch, path);
    let tls = tls.map(|tls| {
        let identity = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => Some((text(cert)?, text(key)?)),
            _ => None,
        };
        let name = tls.server_name.clone();
        anyhow::Ok(gnmi::Tls { authority: text(&tls.ca)?, name, identity })
    });
    let login = login.map(|login| {
        let (user, path) = (login.user.clone(), &login.password);
        let password = text(path)?.trim_end().to_owned();
        if password.is_empty() {
            // Another program may be about to write the password.
            bail!("switch {switch}: file {}: no password", path.display());
        }
        anyhow::Ok((user, password))
    });
    Ok((tls.transpose()?, login.transpose()?))
}

#[cfg(test)]
mod tests {
    use penstock_controller::files::load_controller;

    use super::*;

    #[test]
    fn drivers_have_no_reserved_queues() {
        let folder = penstock_testing::temp_dir();
        let fabric = "[fabric]\nqueues = 8\nreserved_queues = 3\n\n[servers]\nslots = 4\n\n\
                      [[tier]]\nfan_out = 2\nrate = \"10G\"\n";
        std::fs::write(folder.join("fabric.toml"), fabric).unwrap();
        let path = folder.join("controller.toml");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for kind in ["sim", "linux-tc", "gnmi"] {
            let address = if kind == "gnmi" { "address = \"h:9339\"\n" } else { "" };
            let text = format!(
                "[controller]\ntopology = \"fabric.toml\"\n\n[store]\npath = \"s\"\n\n\
                 [[switch]]\nname = \"rack-0\"\ndriver = {kind:?}\n{address}\
                 interfaces = {{ server-0 = [\"a\"], server-1 = [\"b\"] }}\n"
            );
            std::fs::write(&path, text).unwrap();
            let file = load_controller(&path).unwrap();
            let given = file.fabric.clone();
            let binding = file.binding.clone();
            let fabric = Fabric::new(given.topology, 0, given.policy, binding).unwrap();
            let (node, switch) = file.switches.first_key_value().unwrap();
            let driver = driver(&file, &fabric, *node, switch).unwrap();
            let can = runtime.block_on(driver.capabilities()).unwrap();
            assert_eq!((driver.kind(), can.queues), (kind, 6), "the shared queue and five more");
        }
    }

    #[test]
    fn an_empty_file_is_no_password() {
        let file = std::env::temp_dir().join(format!("penstock-password-{}", std::process::id()));
        let login = LoginFile { user: "admin".to_owned(), password: file.clone() };
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            credentials("leaf1", None, Some(&login)).map(|(_, login)| login)
        };
        assert_eq!(read("secret\n").unwrap(), Some(("admin".to_owned(), "secret".to_owned())));
        let error = read("\n").unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(error.starts_with("switch leaf1: ") && error.ends_with("no password"), "{error}");
    }
}
