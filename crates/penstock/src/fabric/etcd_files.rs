//! Reads the certificates for etcd again, soon after their files change and at once on SIGHUP.
//!
//! If a file is missing or damaged, the controller continues with the certificates that it read
//! before.

use anyhow::{Context as _, Result};
use penstock_controller::files::TlsFiles;
use penstock_controller::store::{Etcd, EtcdConfig, EtcdTls};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::{LOOK_EVERY, read};

/// Files of the certificates for etcd, and the store that uses them.
pub struct EtcdFiles {
    etcd: Etcd,
    config: EtcdConfig,
    files: TlsFiles,
}

impl EtcdFiles {
    /// Opens the store with the certificates in `files`.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is damaged, or an endpoint is not valid.
    pub fn open(endpoints: Vec<String>, files: &TlsFiles) -> Result<Self> {
        let config = EtcdConfig { tls: Some(certificates(files)?), ..EtcdConfig::new(endpoints) };
        Ok(Self { etcd: Etcd::new(&config)?, config, files: files.clone() })
    }

    /// Returns the store, which gets new certificates from [`Self::watch`].
    pub fn etcd(&self) -> Etcd {
        self.etcd.clone()
    }

    /// Gives the store the contents of changed files. The returned future runs until the caller
    /// drops it.
    ///
    /// # Errors
    /// Returns an error if signals cannot be handled.
    pub async fn watch(self) -> Result<()> {
        let Self { etcd, mut config, files } = self;
        let mut hup = signal(SignalKind::hangup()).context("signals cannot be handled")?;
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = config.tls.clone().ok_or_else(String::new);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                _ = hup.recv() => {}
            }
            let of = files.clone();
            let now = tokio::task::spawn_blocking(move || certificates(&of)).await;
            let now = now.map_err(anyhow::Error::from).and_then(|read| read);
            let now = now.map_err(|error| format!("{error:#}"));
            if now == last {
                continue;
            }
            let renewed = now.clone().and_then(|tls| {
                config.tls = Some(tls);
                etcd.renew(&config).map_err(|error| error.to_string())
            });
            match renewed {
                Ok(()) => tracing::info!(?files, "new certificates for etcd are in use"),
                Err(error) => {
                    tracing::warn!("the previous certificates for etcd are still in use: {error}");
                }
            }
            last = now;
        }
    }
}

fn certificates(files: &TlsFiles) -> Result<EtcdTls> {
    let identity = Some((read(&files.cert)?, read(&files.key)?));
    Ok(EtcdTls { ca: read(&files.ca)?, identity })
}
