//! The config webhook: the API server asks one replica that is there, as a Service does.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::Shared;
use crate::random::Random;
use crate::replica::Replica;

pub(super) fn install(shared: &Shared, replicas: &[Replica], random: Random) {
    let (replicas, random) = (replicas.to_vec(), Arc::new(Mutex::new(random)));
    let ask = move |review: Value| {
        let alive: Vec<Replica> = replicas.iter().filter(|replica| replica.is_alive()).cloned().collect();
        let chosen = random.lock().unwrap_or_else(PoisonError::into_inner).pick(&alive).cloned();
        let answer = async move { patch(&chosen?.review(review).await?) };
        Box::pin(answer) as futures::future::BoxFuture<'static, Option<json_patch::Patch>>
    };
    shared.lock().webhook = Some(Arc::new(ask));
}

/// What an answer changes, as the API server reads it.
fn patch(answer: &Value) -> Option<json_patch::Patch> {
    let text = answer["response"]["patch"].as_str()?;
    serde_json::from_slice(&decoded(text)?).ok()
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        bits = bits << 6 | u32::from(value(letter)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_read() {
        assert_eq!(decoded("aGVhbHRoeQ==").unwrap(), b"healthy");
        assert_eq!(decoded("YWJj").unwrap(), b"abc");
        assert_eq!(decoded("?"), None);
    }
}
