//! Serves the operators' API, which uses gRPC with answers in JSON.

use std::sync::Arc;

use penstock_fabric::ledger::Service;
use penstock_fabric::topology::Topology;
use serde_json::json;
use tokio::sync::MappedMutexGuard;
use tonic::{Request, Response, Status};

use super::Controller;
use crate::agents::Leading;
use crate::fabric_state::ChangeRefused;
use crate::intent::{Mode, TenantSpec};
use crate::leader::{Leader, LeaderError};
use crate::view;
use crate::wire::v1::operator_service_server::OperatorService;
use crate::wire::v1::{
    GetViewRequest, GrowTenantRequest, Json, RaiseEpochRequest, RevertRequest, SetModeRequest,
    SetServiceRequest, TenantName, TomlText,
};

/// Function that reads a file of tenants. The error lists every mistake of the file, one per line.
pub type ReadTenants =
    Arc<dyn Fn(&str, &Topology, &[String]) -> Result<Vec<TenantSpec>, String> + Send + Sync>;

/// Answers the requests of operators: tenants, nodes, plans and status.
#[derive(Clone)]
pub struct Operator {
    controller: Arc<Controller>,
    read: ReadTenants,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").finish_non_exhaustive()
    }
}

type Reply = Result<Response<Json>, Status>;

fn reply(value: &serde_json::Value) -> Reply {
    Ok(Response::new(Json { text: value.to_string() }))
}

fn status(error: &LeaderError) -> Status {
    let text = error.to_string();
    match error {
        LeaderError::Deposed | LeaderError::NoHistory => Status::failed_precondition(text),
        LeaderError::Epoch { .. } => Status::invalid_argument(text),
        LeaderError::Store(_) => Status::unavailable(text),
        LeaderError::Intent(_) => Status::data_loss(text),
        LeaderError::Refused(refused) => match **refused {
            ChangeRefused::Exists(_) => Status::already_exists(text),
            ChangeRefused::Unknown(_) | ChangeRefused::UnknownNode(_) => Status::not_found(text),
            ChangeRefused::Intent(_) | ChangeRefused::Name { .. } => Status::invalid_argument(text),
            _ => Status::failed_precondition(text),
        },
    }
}

impl Operator {
    /// Creates the operators' service of a controller. `read` is the function that reads files of
    /// tenants.
    #[must_use]
    pub fn new(controller: Arc<Controller>, read: ReadTenants) -> Self {
        Self { controller, read }
    }

    async fn leader(&self) -> Result<MappedMutexGuard<'_, Leader>, Status> {
        let guard = self.controller.leader().await;
        tokio::sync::MutexGuard::try_map(guard, Option::as_mut).map_err(|_| {
            let elsewhere = match &*self.controller.leading().borrow() {
                Leading::Elsewhere(address) if !address.is_empty() => address.clone(),
                _ => "unknown".to_owned(),
            };
            Status::failed_precondition(format!(
                "this controller does not lead; the leader is {elsewhere}"
            ))
        })
    }
}

#[tonic::async_trait]
impl OperatorService for Operator {
    async fn get_view(&self, request: Request<GetViewRequest>) -> Reply {
        let GetViewRequest { what, name } = request.into_inner();
        if what != "status" {
            // If another controller leads, the call fails with that controller's address.
            drop(self.leader().await?);
        }
        match self.controller.view(&what, &name).await {
            Some(value) => reply(&value),
            None if what == "explain" || what == "history" => {
                Err(Status::not_found(ChangeRefused::Unknown(name).to_string()))
            }
            None => Err(Status::not_found(format!(
                "no view `{what}`; use status, topology, tenants, bindings, events, explain, \
                 history or switch-counters"
            ))),
        }
    }

    async fn add_tenants(&self, request: Request<TomlText>) -> Reply {
        let mut leader = self.leader().await?;
        let text = request.into_inner().text;
        let known: Vec<String> =
            leader.fabric().tenants().map(|(name, _, _)| name.to_owned()).collect();
        let wishes = (self.read)(&text, leader.fabric().topology(), &known)
            .map_err(Status::invalid_argument)?;
        let (mut placed, mut refused) = (Vec::new(), Vec::new());
        let names: Vec<String> = wishes.iter().map(|wish| wish.name.clone()).collect();
        for (name, added) in names.into_iter().zip(leader.add_all(wishes).await) {
            match added {
                Ok(record) => placed.push(json!({ "name": name, "root": record.placement.root })),
                Err(LeaderError::Refused(why)) => {
                    refused.push(json!({ "name": name, "why": why.to_string() }));
                }
                Err(error) => return Err(status(&error)),
            }
        }
        reply(&json!({ "placed": placed, "refused": refused }))
    }

    async fn remove_tenant(&self, request: Request<TenantName>) -> Reply {
        let name = request.into_inner().name;
        self.leader().await?.remove(&name).await.map_err(|error| status(&error))?;
        reply(&json!({ "removed": name }))
    }

    async fn grow_tenant(&self, request: Request<GrowTenantRequest>) -> Reply {
        let GrowTenantRequest { name, class, more, may_move } = request.into_inner();
        let class = usize::try_from(class).unwrap_or(usize::MAX);
        let grown = self.leader().await?.grow(&name, class, more, may_move).await;
        let (moved, record) = grown.map_err(|error| status(&error))?;
        let vms: u32 = record.spec.classes.iter().map(|class| class.vms).sum();
        reply(&json!({ "name": name, "vms": vms, "how": format!("{moved:?}") }))
    }

    async fn set_service(&self, request: Request<SetServiceRequest>) -> Reply {
        let SetServiceRequest { node, service } = request.into_inner();
        let service = match service.as_str() {
            "in" => Service::In,
            "drained" => Service::Drained,
            "failed" => Service::Failed,
            other => {
                let text =
                    format!("service `{other}` is unknown; write `in`, `drained` or `failed`");
                return Err(Status::invalid_argument(text));
            }
        };
        let mut leader = self.leader().await?;
        let moves = leader.set_service(&node, service).await.map_err(|error| status(&error))?;
        let moved = moves.iter().map(|moved| {
            let (how, why) = match &moved.outcome {
                Ok(how) => (Some(format!("{how:?}")), None),
                Err(refusal) => (None, Some(refusal.to_string())),
            };
            json!({ "name": leader.fabric().name(moved.tenant), "how": how, "stays": why })
        });
        reply(&json!({ "node": node, "moves": moved.collect::<Vec<_>>() }))
    }

    async fn set_mode(&self, request: Request<SetModeRequest>) -> Reply {
        let text = request.into_inner().mode;
        let mode = match text.as_str() {
            "active" => Mode::Active,
            "observe" => Mode::Observe,
            "hold" => Mode::Hold,
            other => {
                let text =
                    format!("mode `{other}` is unknown; write `active`, `observe` or `hold`");
                return Err(Status::invalid_argument(text));
            }
        };
        self.leader().await?.set_mode(mode).await.map_err(|error| status(&error))?;
        reply(&json!({ "mode": mode }))
    }

    async fn raise_epoch(&self, request: Request<RaiseEpochRequest>) -> Reply {
        let mut leader = self.leader().await?;
        let before = leader.stamp().epoch;
        let raised = leader.raise_epoch(request.into_inner().at_least).await;
        let epoch = raised.map_err(|error| status(&error))?;
        if epoch > before {
            self.controller.begin_anew(leader.stamp());
        }
        reply(&json!({ "epoch": epoch, "before": before }))
    }

    async fn revert(&self, _request: Request<RevertRequest>) -> Reply {
        let report = self.leader().await?.revert().await.map_err(|error| status(&error))?;
        let text = json!({
            "promoted": report.promoted,
            "demoted": report.demoted,
            "steps": report.steps,
            "taken_back": report.taken_back,
            "plan_us": u64::try_from(report.plan.took().as_micros()).unwrap_or(u64::MAX),
            "plan_stages": view::stages(&report.plan),
            "mode": "hold",
        });
        reply(&text)
    }
}
