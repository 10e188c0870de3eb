//! What an agent is told by who starts it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

/// An agent's settings.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// This server's name in the topology; its certificate must have it.
    pub host: String,
    /// Controllers, `host:port` or with `https://` before; asked in this order.
    pub endpoints: Vec<String>,
    /// Certificates. `None`: no encryption and no proof of who is who, for tests and for one
    /// machine.
    pub tls: Option<AgentTls>,
    /// Where the last plan is kept.
    pub plan_file: PathBuf,
    /// The least and the most time between two rounds of asking all controllers, without the
    /// random part: [`super`].
    pub pause: (Duration, Duration),
    /// How long a controller may take to answer.
    pub connect_limit: Duration,
    /// How long the switch may take for one call.
    pub side_limit: Duration,
    /// Between two reports, until a controller has said.
    pub interval: Duration,
}

/// Files, PEM. They are read anew for each connection, so a renewed certificate is used from the
/// next one on.
#[derive(Clone, Debug)]
pub struct AgentTls {
    /// Who signed the controllers' certificates.
    pub ca: PathBuf,
    /// This host's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Revocation lists of who signed the controllers' certificates.
    pub crl: Option<PathBuf>,
    /// The name that every controller's certificate has.
    pub server_name: String,
}

/// Settings that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A setting.
    #[error("agent of host {host}: {problem}")]
    Setting {
        /// Whose.
        host: String,
        /// Which, what is wrong, and the remedy.
        problem: String,
    },
    /// A file that cannot be read.
    #[error("{path}: {problem}; name a file that the agent can read")]
    File {
        /// Which.
        path: String,
        /// Why.
        problem: String,
    },
}

impl AgentSettings {
    /// Pauses of 0.5 to 10 s, 3 s for a controller, 5 s for the switch, a report a second.
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
        if self.host.is_empty() || self.host.len() > crate::wire::NAME_BYTES_MAX {
            return wrong("a name of 1 to 63 bytes is needed; give the topology's".to_owned());
        }
        if self.endpoints.is_empty() {
            return wrong("no controller is named; name at least one".to_owned());
        }
        for endpoint in &self.endpoints {
            if let Err(problem) = self.uri(endpoint) {
                return wrong(problem);
            }
        }
        let (least, most) = self.pause;
        if least < Duration::from_millis(1) || most < least {
            return wrong(format!("pauses of {least:?} to {most:?}; the least is 1 ms"));
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

    /// An address with its scheme: `https` if there are certificates, and nothing else then.
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
    fn what_cannot_work_is_refused_with_a_remedy() {
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
