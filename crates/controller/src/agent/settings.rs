//! Defines the settings of an agent, with their defaults and limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_units::NODE_BYTES_MAX;
use thiserror::Error;

#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Name of the agent's server in the topology. The agent's certificate must contain the
    /// server's name.
    pub host: String,
    /// Controllers as `host:port`, optionally with `https://`. The agent calls the controllers in
    /// the order of the list.
    pub endpoints: Vec<String>,
    /// Certificates. `None` means that sessions have neither encryption nor authentication.
    /// Sessions without certificates are only for tests and for a single machine.
    pub tls: Option<AgentTls>,
    /// File in which the agent stores the last plan.
    pub plan_file: PathBuf,
    /// Shortest and longest pause between two rounds of calls to all controllers. The agent
    /// shortens each pause by a random part.
    pub pause: (Duration, Duration),
    /// Time limit of a connection attempt, and of the controller's first answer.
    pub connect_limit: Duration,
    /// Time limit of a call to the switch.
    pub side_limit: Duration,
    /// Time between two traffic reports. A controller may set another report interval for a
    /// session.
    pub interval: Duration,
}

/// Paths of the agent's PEM files. The agent reads the files for each connection, so the next
/// connection uses a renewed certificate.
#[derive(Clone, Debug)]
pub struct AgentTls {
    /// PEM file of the CA that signed the controllers' certificates.
    pub ca: PathBuf,
    /// PEM file of this host's certificate.
    pub certificate: PathBuf,
    /// PEM file of the private key of this host's certificate.
    pub key: PathBuf,
    /// PEM file of the revocation lists of the controllers' CA. `None` means that the agent checks
    /// no revocations.
    pub crl: Option<PathBuf>,
    /// DNS name that the certificate of every controller must contain.
    pub server_name: String,
}

/// Reason why the agent's settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error("agent of host {host}: {problem}")]
    Setting {
        host: String,
        /// Name of the agent's invalid setting, with the problem and the remedy.
        problem: String,
    },
    /// A file of certificates or keys cannot be read.
    #[error("{path}: {problem}; name a file that the agent can read")]
    File { path: String, problem: String },
}

impl AgentSettings {
    /// Returns the settings of an agent with the defaults in the following table.
    ///
    /// | Setting | Default |
    /// |---|---|
    /// | pause between two rounds of calls | 0.5 to 10 s |
    /// | time limit of a connection attempt and of the first answer | 3 s |
    /// | time limit of a call to the switch | 5 s |
    /// | time between two traffic reports | 1 s |
    #[must_use]
    pub fn new(host: &str, endpoints: Vec<String>, tls: Option<AgentTls>, plan: &Path) -> Self {
        Self {
            host: host.to_owned(),
            endpoints,
            tls,
            plan_file: plan.to_owned(),
            pause: (Duration::from_millis(500), Duration::from_secs(10)),
            connect_limit: Duration::from_secs(3),
            side_limit: Duration::from_secs(5),
            interval: Duration::from_secs(1),
        }
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let wrong = |problem: String| {
            let host = self.host.clone();
            Err(SettingsError::Setting { host, problem })
        };
        if self.host.is_empty() || self.host.len() > NODE_BYTES_MAX {
            return wrong(format!(
                "the name does not have 1 to {NODE_BYTES_MAX} bytes; use the name in the topology"
            ));
        }
        if self.endpoints.is_empty() {
            return wrong("no controller is configured; name at least one".to_owned());
        }
        for endpoint in &self.endpoints {
            if let Err(problem) = self.uri(endpoint) {
                return wrong(problem);
            }
        }
        let (least, most) = self.pause;
        if least < Duration::from_millis(1) || most < least {
            return wrong(format!(
                "the pauses {least:?} to {most:?} are invalid; use at least 1 ms, and the shorter \
                 pause first"
            ));
        }
        for (what, time) in [
            ("for a controller", self.connect_limit),
            ("for the switch", self.side_limit),
            ("for an interval", self.interval),
        ] {
            if time < Duration::from_millis(1) {
                return wrong(format!("{time:?} {what} is too short; use 1 ms or more"));
            }
        }
        let tls = self
            .tls
            .iter()
            .flat_map(|tls| [&tls.ca, &tls.certificate, &tls.key].into_iter().chain(&tls.crl));
        for path in tls {
            std::fs::read(path).map_err(|error| SettingsError::File {
                path: path.display().to_string(),
                problem: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Returns a controller's address with its scheme. If the agent has certificates, only `https`
    /// is valid.
    pub(super) fn uri(&self, named: &str) -> Result<String, String> {
        let wanted = if self.tls.is_some() { "https" } else { "http" };
        let (scheme, address) = named.split_once("://").unwrap_or((wanted, named));
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        match (scheme, port) {
            (_, None) => Err(format!("controller {named} has no port; write host:port")),
            (scheme, _) if scheme == wanted => Ok(format!("{scheme}://{address}")),
            ("https", _) => Err(format!("controller {named} needs certificates; name their files")),
            ("http", _) => {
                Err(format!("controller {named} has no encryption; name it with https://"))
            }
            _ => Err(format!("controller {named} is neither http:// nor https://")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str) -> AgentSettings {
        let endpoints = vec![endpoint.to_owned()];
        AgentSettings::new("server-0", endpoints, None, Path::new("plan"))
    }

    #[test]
    fn invalid_settings_are_refused_with_a_remedy() {
        assert_eq!(settings("10.0.0.1:7000").check(), Ok(()));
        let error = |settings: AgentSettings| settings.check().unwrap_err().to_string();
        assert!(error(settings("10.0.0.1")).ends_with("has no port; write host:port"));
        assert!(error(settings("https://a:1")).ends_with("needs certificates; name their files"));
        assert!(error(settings("ftp://a:1")).contains("neither http:// nor https://"));
        let none = AgentSettings { endpoints: vec![], ..settings("a:1") };
        assert!(error(none).ends_with("name at least one"));
        let unnamed = AgentSettings { host: String::new(), ..settings("a:1") };
        assert!(error(unnamed).contains("1 to 63 bytes"));
        let file = PathBuf::from("/nowhere/ca.pem");
        let tls = AgentTls {
            ca: file.clone(),
            certificate: file.clone(),
            key: file,
            crl: None,
            server_name: "controller".into(),
        };
        let tls = AgentSettings { tls: Some(tls), ..settings("a:1") };
        assert!(error(tls.clone()).contains("/nowhere/ca.pem"));
        assert_eq!(tls.uri("a:1"), Ok("https://a:1".to_owned()));
        assert!(tls.uri("http://a:1").is_err(), "nobody talks an agent out of encryption");
    }
}
