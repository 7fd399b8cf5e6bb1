//! The config webhook: the API server tells one replica that is there, as a Service does.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::Shared;
use crate::random::Random;
use crate::replica::Replica;

pub(super) fn install(shared: &Shared, replicas: &[Replica], random: Random) {
    let (replicas, random) = (replicas.to_vec(), Arc::new(Mutex::new(random)));
    let tell = move |review: Value| {
        let alive: Vec<Replica> = replicas.iter().filter(|replica| replica.is_alive()).cloned().collect();
        let chosen = random.lock().unwrap_or_else(PoisonError::into_inner).pick(&alive).cloned();
        let told = async move {
            if let Some(chosen) = chosen {
                // It changes nothing, and may not refuse anything either.
                chosen.review(review).await;
            }
        };
        Box::pin(told) as futures::future::BoxFuture<'static, ()>
    };
    shared.lock().webhook = Some(Arc::new(tell));
}
