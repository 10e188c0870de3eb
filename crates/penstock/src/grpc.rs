//! The standard services of a gRPC server, which the daemon and the controller both offer on their
//! sockets.
//!
//! # Source
//!
//! `grpc.health.v1.Health` (gRPC's health checking protocol), and `grpc.reflection.v1` and its
//! forerunner `grpc.reflection.v1alpha` (gRPC's server reflection protocol).
//!
//! # Approach
//!
//! Tools such as `grpcurl` and `grpc-health-probe` need no file of the API: they read the
//! descriptors of the services from the server. Tools from before `grpc.reflection.v1` ask for
//! `grpc.reflection.v1alpha` and do not fall back, so the server has both. Their messages and
//! answers are the same.

use anyhow::{Context as _, Result};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::Builder;

/// Descriptors of all services of Penstock, written by the build script.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/penstock.bin"));

/// Returns the health service and the two reflection services, which describe the services
/// `names`. The service `S` is not serving until [`report`] says so.
///
/// # Errors
/// Returns an error if a descriptor is broken, which is a defect of the build.
pub async fn standard<S: NamedService>(names: &[&str]) -> Result<(HealthReporter, Routes)> {
    let (reporter, health) = tonic_health::server::health_reporter();
    report::<S>(&reporter, false).await;
    let broken = "API socket: descriptors of the services";
    let reflection = described(names).build_v1().context(broken)?;
    let forerunner = described(names).build_v1alpha().context(broken)?;
    let routes = Routes::new(health).add_service(reflection).add_service(forerunner);
    Ok((reporter, routes))
}

/// Returns a reflection service that describes the services `names` and the health service.
fn described(names: &[&str]) -> Builder<'static> {
    let service = Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("grpc.health.v1.Health");
    names.iter().fold(service, |service, name| service.with_service_name(*name))
}

/// Sets the status of the service `S`, and of the server as a whole.
pub async fn report<S: NamedService>(reporter: &HealthReporter, is_serving: bool) {
    let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    reporter.set_service_status(S::NAME, status).await;
    reporter.set_service_status("", status).await;
}
