//! Tests of the standard gRPC services on the daemon's socket: health and reflection.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;
use tonic_reflection::pb::v1alpha::server_reflection_client as alpha_client;
use tonic_reflection::pb::v1alpha::server_reflection_request as alpha_request;
use tonic_reflection::pb::v1alpha::server_reflection_response as alpha_response;

use crate::support::Daemon;

const HOST: &str = "penstock.host.v1.HostService";

async fn channel(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://penstock.invalid");
    endpoint.connect_with_connector(connector).await.unwrap()
}

async fn reflect(channel: Channel, question: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let requests = tokio_stream::iter([request]);
    let mut client = ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let answer: ServerReflectionResponse = answers.next().await.unwrap().unwrap();
    answer.message_response.unwrap()
}

/// Lists the services as `grpcurl` before 1.8.8 does.
async fn list_as_old_tools(channel: Channel) -> Vec<String> {
    let question = alpha_request::MessageRequest::ListServices(String::new());
    let request =
        v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut client = alpha_client::ServerReflectionClient::new(channel);
    let requests = tokio_stream::iter([request]);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response.unwrap();
    let alpha_response::MessageResponse::ListServicesResponse(listed) = answer else {
        panic!("{answer:?}")
    };
    listed.service.into_iter().map(|service| service.name).collect()
}

#[tokio::test]
async fn tools_find_the_services_and_their_health_without_a_file() {
    let Some(daemon) = Daemon::start("") else { return };
    let channel = channel(daemon.socket()).await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", HOST] {
        let request = HealthCheckRequest { service: service.to_owned() };
        // The first report follows the first look at the workers.
        let mut states = health.watch(request).await.unwrap().into_inner();
        let serving = ServingStatus::Serving as i32;
        while states.next().await.unwrap().unwrap().status != serving {}
    }
    let unknown = HealthCheckRequest { service: "penstock.Nothing".to_owned() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);

    let listed = reflect(channel.clone(), MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<_> = listed.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&HOST) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("switch")), "it is no switch: {names:?}");
    assert_eq!(list_as_old_tools(channel.clone()).await, names, "v1alpha");
    let described = reflect(channel, MessageRequest::FileContainingSymbol(HOST.to_owned())).await;
    assert!(matches!(described, MessageResponse::FileDescriptorResponse(_)), "{described:?}");
}
