//! People: what they do with their own tools, and with ours.
//!
//! A deed says what somebody does and to what; what exactly that means is decided when it is done, by what there is then, as a person does
//! it. So leaving one out changes the others as little as it can.

mod configs;
mod draw;
mod steering;
mod workloads;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::Shared;
use crate::kinds::{Key, Kind};
use crate::scene::{Content, PEOPLE, Scene};
use crate::store::{Object, Part, Patch, Propagation, Refusal, Write, Writer};

pub use draw::draw;

/// Something that a person does. Configs, consumers and so on are numbers: their places in the scene.
#[derive(Debug, Clone, PartialEq)]
pub struct Deed {
    /// Which of the [`PEOPLE`].
    pub by: usize,
    pub act: Act,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Edit {
        config: usize,
        content: Content,
        how: Editing,
    },
    /// Back to what it was before the last edit.
    TakeBack {
        config: usize,
    },
    DeleteConfig {
        config: usize,
    },
    /// Makes it if it is not there.
    CreateConfig {
        config: usize,
        content: Content,
    },
    /// Deletes and creates it in one breath.
    ForceConfig {
        config: usize,
        content: Content,
    },
    OptOut {
        config: usize,
        by_ignoring: bool,
    },
    OptIn {
        config: usize,
    },
    /// Names another policy for it.
    Choose {
        config: usize,
        policy: Option<String>,
    },
    /// A new image.
    Code {
        consumer: usize,
        image: u32,
    },
    /// Config and workload in one `apply`, so many milliseconds apart.
    Together {
        config: usize,
        content: Content,
        consumer: usize,
        image: u32,
        gap_ms: u64,
    },
    /// The same manifest again.
    Apply {
        consumer: usize,
    },
    /// `kubectl replace`, with or without what the API server adds to an object.
    Replace {
        consumer: usize,
        knows_object: bool,
        image: Option<u32>,
    },
    /// `kubectl replace --force`: deleted and created.
    Force {
        consumer: usize,
    },
    /// `rollout undo`, so many revisions back.
    Undo {
        consumer: usize,
        back: usize,
    },
    Scale {
        consumer: usize,
        replicas: u32,
    },
    Restart {
        consumer: usize,
    },
    /// Another strategy, or back to its own.
    Strategy {
        consumer: usize,
    },
    /// Sets fields that a gate may have borrowed.
    MinReady {
        consumer: usize,
        seconds: u32,
    },
    DeleteConsumer {
        consumer: usize,
    },
    CreateConsumer {
        consumer: usize,
    },
    /// Leaves one of its references out, or brings it back.
    Reference {
        consumer: usize,
        image: u32,
    },
    DeletePods {
        consumer: usize,
    },
    DeleteVersionedConfig {
        config: usize,
    },
    DeleteRelease {
        config: usize,
    },
    DeletePolicy {
        policy: usize,
    },
    WritePolicy {
        policy: usize,
        spec: Value,
    },
    Pause {
        config: usize,
    },
    Resume {
        config: usize,
    },
    Promote {
        config: usize,
    },
    Abort {
        config: usize,
    },
    Retry {
        config: usize,
    },
    /// `lockstep rollback`, to the version before, or so many before that.
    Rollback {
        config: usize,
        back: usize,
    },
    Follow {
        config: usize,
    },
    ArgoAbort {
        consumer: usize,
    },
    ArgoPromote {
        consumer: usize,
    },
    ArgoRetry {
        consumer: usize,
    },
    DeleteNamespace {
        namespace: usize,
    },
    /// Makes it, and all that is in it, if it is not there.
    CreateNamespace {
        namespace: usize,
    },
}

/// How an edit is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Editing {
    Patch,
    /// With a name for the version, or a reason.
    Named {
        version: Option<String>,
        reason: Option<String>,
    },
    /// The whole object, without its resource version.
    Replace,
}

impl Deed {
    /// What it is, in one word, for statistics.
    pub fn name(&self) -> &'static str {
        match &self.act {
            Act::Edit { .. } => "edit",
            Act::TakeBack { .. } => "take back",
            Act::DeleteConfig { .. } => "delete config",
            Act::CreateConfig { .. } => "create config",
            Act::ForceConfig { .. } => "replace --force config",
            Act::OptOut { .. } => "opt out",
            Act::OptIn { .. } => "opt in",
            Act::Choose { .. } => "choose policy",
            Act::Code { .. } => "new code",
            Act::Together { .. } => "config and code together",
            Act::Apply { .. } => "apply again",
            Act::Replace { .. } => "replace",
            Act::Force { .. } => "replace --force",
            Act::Undo { .. } => "undo",
            Act::Scale { .. } => "scale",
            Act::Restart { .. } => "restart",
            Act::Strategy { .. } => "strategy",
            Act::MinReady { .. } => "min ready",
            Act::DeleteConsumer { .. } => "delete workload",
            Act::CreateConsumer { .. } => "create workload",
            Act::Reference { .. } => "reference",
            Act::DeletePods { .. } => "delete pods",
            Act::DeleteVersionedConfig { .. } => "delete VersionedConfig",
            Act::DeleteRelease { .. } => "delete Release",
            Act::DeletePolicy { .. } => "delete policy",
            Act::WritePolicy { .. } => "write policy",
            Act::Pause { .. } => "pause",
            Act::Resume { .. } => "resume",
            Act::Promote { .. } => "promote",
            Act::Abort { .. } => "abort",
            Act::Retry { .. } => "retry",
            Act::Rollback { .. } => "rollback",
            Act::Follow { .. } => "follow",
            Act::ArgoAbort { .. } => "argo abort",
            Act::ArgoPromote { .. } => "argo promote",
            Act::ArgoRetry { .. } => "argo retry",
            Act::DeleteNamespace { .. } => "delete namespace",
            Act::CreateNamespace { .. } => "create namespace",
        }
    }

    /// What it is, as a sentence without its end.
    pub fn tell(&self, scene: &Scene) -> String {
        let who = PEOPLE[self.by];
        let config = |index: &usize| scene.configs[*index].key.to_string();
        let consumer = |index: &usize| scene.consumers[*index].key.to_string();
        let what = match &self.act {
            Act::Edit { config: which, content, how: Editing::Patch } => format!("edits {}: {content}", config(which)),
            Act::Edit { config: which, content, how: Editing::Replace } => {
                format!("replaces {}: {content}", config(which))
            }
            Act::Edit { config: which, content, how: Editing::Named { version, reason } } => {
                let name = version.as_ref().map(|name| format!(", as version {name}")).unwrap_or_default();
                let why = reason.as_ref().map(|reason| format!(", because {reason}")).unwrap_or_default();
                format!("edits {}: {content}{name}{why}", config(which))
            }
            Act::TakeBack { config: which } => format!("takes the last edit of {} back", config(which)),
            Act::DeleteConfig { config: which } => format!("deletes {}", config(which)),
            Act::CreateConfig { config: which, content } => format!("creates {}: {content}", config(which)),
            Act::ForceConfig { config: which, content } => {
                format!("deletes {} and creates it again at once: {content}", config(which))
            }
            Act::OptOut { config: which, by_ignoring: true } => format!("has {} ignored", config(which)),
            Act::OptOut { config: which, .. } => format!("opts {} out", config(which)),
            Act::OptIn { config: which } => format!("opts {} in", config(which)),
            Act::Choose { config: which, policy } => {
                format!("gives {} the policy {}", config(which), policy.as_deref().unwrap_or("of its namespace"))
            }
            Act::Code { consumer: which, image } => format!("gives {} the image {image}", consumer(which)),
            Act::Together { config: which, content, consumer: workload, image, gap_ms } => format!(
                "applies {} ({content}) and, {gap_ms} ms later, {} with the image {image}",
                config(which),
                consumer(workload)
            ),
            Act::Apply { consumer: which } => format!("applies {} again as it is", consumer(which)),
            Act::Replace { consumer: which, knows_object, image } => {
                let known = if *knows_object { "as read from the API server" } else { "by a plain manifest" };
                let code = image.map(|image| format!(", with the image {image}")).unwrap_or_default();
                format!("replaces {} {known}{code}", consumer(which))
            }
            Act::Force { consumer: which } => format!("deletes {} and creates it again at once", consumer(which)),
            Act::Undo { consumer: which, back } => format!("undoes {}, {back} revisions back", consumer(which)),
            Act::Scale { consumer: which, replicas } => format!("scales {} to {replicas}", consumer(which)),
            Act::Restart { consumer: which } => format!("restarts {}", consumer(which)),
            Act::Strategy { consumer: which } => format!("changes the strategy of {}", consumer(which)),
            Act::MinReady { consumer: which, seconds } => {
                format!("sets minReadySeconds of {} to {seconds}", consumer(which))
            }
            Act::DeleteConsumer { consumer: which } => format!("deletes {}", consumer(which)),
            Act::CreateConsumer { consumer: which } => format!("creates {}", consumer(which)),
            Act::Reference { consumer: which, .. } => format!("changes the references of {}", consumer(which)),
            Act::DeletePods { consumer: which } => format!("deletes the pods of {}", consumer(which)),
            Act::DeleteVersionedConfig { config: which } => format!("deletes the VersionedConfig of {}", config(which)),
            Act::DeleteRelease { config: which } => format!("deletes the newest Release of {}", config(which)),
            Act::DeletePolicy { policy } => format!("deletes the policy {}", scene.policies[*policy].name),
            Act::WritePolicy { policy, spec } => format!("writes the policy {}: {spec}", scene.policies[*policy].name),
            Act::Pause { config: which } => format!("pauses the release of {}", config(which)),
            Act::Resume { config: which } => format!("resumes the release of {}", config(which)),
            Act::Promote { config: which } => format!("promotes the release of {}", config(which)),
            Act::Abort { config: which } => format!("aborts the release of {}", config(which)),
            Act::Retry { config: which } => format!("retries what is held of {}", config(which)),
            Act::Rollback { config: which, back } => format!("rolls {} back by {}", config(which), back + 1),
            Act::Follow { config: which } => format!("lets {} follow its source again", config(which)),
            Act::ArgoAbort { consumer: which } => format!("aborts {} in Argo", consumer(which)),
            Act::ArgoPromote { consumer: which } => format!("promotes {} in Argo", consumer(which)),
            Act::ArgoRetry { consumer: which } => format!("retries {} in Argo", consumer(which)),
            Act::DeleteNamespace { namespace } => {
                format!("deletes the namespace {}", scene.namespaces[*namespace].name)
            }
            Act::CreateNamespace { namespace } => {
                format!("creates the namespace {} again, with all that was in it", scene.namespaces[*namespace].name)
            }
        };
        format!("{who} {what}")
    }
}

/// What people know of what they wrote themselves: their manifests.
#[derive(Debug, Default)]
struct Memory {
    /// The image of each consumer's manifest.
    images: BTreeMap<usize, u32>,
    /// The consumers whose last reference is left out.
    shortened: BTreeMap<usize, bool>,
    /// What each config held, newest last.
    contents: BTreeMap<usize, Vec<Content>>,
}

/// All people together: they share their manifests, as a team does.
#[derive(Clone)]
pub struct Users {
    shared: Shared,
    scene: Arc<Scene>,
    memory: Arc<Mutex<Memory>>,
}

impl Users {
    pub fn new(shared: Shared, scene: Arc<Scene>) -> Self {
        Self { shared, scene, memory: Arc::default() }
    }

    /// Does it. What the API server refuses is the person's own problem.
    pub async fn perform(&self, deed: &Deed) -> Result<(), Refusal> {
        let who = Person { users: self, name: PEOPLE[deed.by] };
        match &deed.act {
            Act::Edit { .. }
            | Act::TakeBack { .. }
            | Act::DeleteConfig { .. }
            | Act::CreateConfig { .. }
            | Act::ForceConfig { .. }
            | Act::OptOut { .. }
            | Act::OptIn { .. }
            | Act::Choose { .. } => who.change_config(&deed.act).await,
            Act::Together { config, content, consumer, image, gap_ms } => {
                let edit = Act::Edit { config: *config, content: *content, how: Editing::Patch };
                who.change_config(&edit).await?;
                tokio::time::sleep(std::time::Duration::from_millis(*gap_ms)).await;
                who.change_workload(&Act::Code { consumer: *consumer, image: *image }).await
            }
            Act::DeleteNamespace { .. }
            | Act::CreateNamespace { .. }
            | Act::DeletePolicy { .. }
            | Act::WritePolicy { .. }
            | Act::DeleteVersionedConfig { .. }
            | Act::DeleteRelease { .. }
            | Act::Pause { .. }
            | Act::Resume { .. }
            | Act::Promote { .. }
            | Act::Abort { .. }
            | Act::Retry { .. }
            | Act::Rollback { .. }
            | Act::Follow { .. } => who.steer(&deed.act).await,
            _ => who.change_workload(&deed.act).await,
        }
    }

    /// Makes all that is in a namespace of the scene, the namespace first.
    pub async fn furnish(&self, namespace: usize) -> Result<(), Refusal> {
        Person { users: self, name: PEOPLE[0] }.furnish(namespace).await
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, at work.
struct Person<'a> {
    users: &'a Users,
    name: &'static str,
}

impl Person<'_> {
    fn scene(&self) -> &Scene {
        &self.users.scene
    }

    fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.users.shared.lock().store.get(key).cloned()
    }

    fn list(&self, kind: Kind, namespace: &str) -> Vec<Arc<Object>> {
        self.users.shared.lock().store.list(kind, Some(namespace)).cloned().collect()
    }

    /// By way of admission and of the config webhook, as everybody's writes go.
    async fn write(&self, write: Write) -> Result<(), Refusal> {
        self.users.shared.submit(&Writer::User(self.name.to_owned()), write).await.map(drop)
    }

    async fn create(&self, object: Value) -> Result<(), Refusal> {
        self.write(Write::Create { object }).await
    }

    async fn merge(&self, key: &Key, patch: Value) -> Result<(), Refusal> {
        self.write(Write::Patch { key: key.clone(), patch: Patch::Merge(patch), part: Part::Object }).await
    }

    async fn merge_status(&self, key: &Key, patch: Value) -> Result<(), Refusal> {
        self.write(Write::Patch { key: key.clone(), patch: Patch::Merge(patch), part: Part::Status }).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Refusal> {
        let propagation = Propagation::Background;
        self.write(Write::Delete { key: key.clone(), uid: None, revision: None, propagation }).await
    }
}
