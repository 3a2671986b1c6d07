//! Reading a request's body within limits.
//!
//! Invariant: bodies that are being read and answered hold at most [`LARGE_BODIES`] and [`SMALL_BODY`] for each connection.
//! Absent on purpose: what is in a body.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};

pub use crate::admission::review::BODY_BYTES;

/// From the end of the head to the end of the body.
pub const BODY_TIME: Duration = Duration::from_secs(5);
/// Bodies up to this size need no leave: with every connection busy they take 64 MiB.
pub const SMALL_BODY: usize = 64 << 10;
/// All longer bodies together; what does not fit waits, and is refused when its time is over.
pub const LARGE_BODIES: usize = 64 << 20;
/// Unit in which the room for large bodies is counted.
const UNIT: usize = 1 << 10;

/// Room for the bodies of one server.
#[derive(Debug)]
pub struct Bodies {
    large: Semaphore,
    time: Duration,
}

/// A body that was read, and the room that it takes.
#[derive(Debug)]
pub struct Read<'a> {
    /// The body.
    pub bytes: Bytes,
    _room: Option<SemaphorePermit<'a>>,
}

impl Bodies {
    /// Room as the constants say; `time` is [`BODY_TIME`] save in tests.
    pub fn new(time: Duration) -> Self {
        Self { large: Semaphore::new(LARGE_BODIES / UNIT), time }
    }

    /// Reads the JSON body of a request, or says with which status it is refused.
    pub async fn read(&self, request: Request<Body>) -> Result<Read<'_>, StatusCode> {
        let (head, body) = request.into_parts();
        if !is_json(&head.headers) {
            return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
        let length = length(&head.headers);
        if length.is_some_and(|length| length > BODY_BYTES) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let deadline = tokio::time::Instant::now() + self.time;
        let room = match tokio::time::timeout_at(deadline, self.room(length.unwrap_or(BODY_BYTES))).await {
            Ok(room) => room,
            Err(_) => return Err(StatusCode::SERVICE_UNAVAILABLE),
        };
        match tokio::time::timeout_at(deadline, collect(body, length)).await {
            Ok(bytes) => Ok(Read { bytes: bytes?, _room: room }),
            Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
        }
    }

    async fn room(&self, length: usize) -> Option<SemaphorePermit<'_>> {
        if length <= SMALL_BODY {
            return None;
        }
        let units = u32::try_from(length.div_ceil(UNIT)).expect("a body has at most 8 MiB");
        Some(self.large.acquire_many(units).await.expect("nobody closes the semaphore"))
    }
}

async fn collect(mut body: Body, length: Option<usize>) -> Result<Bytes, StatusCode> {
    let mut whole: Option<BytesMut> = None;
    let mut first = Bytes::new();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        read += data.len();
        if read > BODY_BYTES {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        match &mut whole {
            None if first.is_empty() => first = data,
            None => {
                let mut bytes = BytesMut::with_capacity(length.unwrap_or_default().max(read));
                bytes.extend_from_slice(&first);
                bytes.extend_from_slice(&data);
                whole = Some(bytes);
            }
            Some(bytes) => bytes.extend_from_slice(&data),
        }
    }
    Ok(whole.map_or(first, BytesMut::freeze))
}

fn is_json(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn request(content: &str, body: impl Into<Body>) -> Request<Body> {
        Request::post("/").header(CONTENT_TYPE, content).body(body.into()).unwrap()
    }

    #[rstest]
    #[case("application/json", true)]
    #[case("Application/JSON; charset=utf-8", true)]
    #[case("application/json-patch+json", false)]
    #[case("text/plain", false)]
    #[case("", false)]
    #[tokio::test]
    async fn only_json_is_taken(#[case] content: &str, #[case] taken: bool) {
        let bodies = Bodies::new(BODY_TIME);
        let read = bodies.read(request(content, "{}")).await;
        assert_eq!(read.map(|read| read.bytes).map_err(|code| code.as_u16()), if taken { Ok("{}".into()) } else { Err(415) });
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_put_together() {
        let pieces = ["{\"a\":", "[1,", "2]}"].map(|piece| Ok::<_, std::convert::Infallible>(Bytes::from(piece)));
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        assert_eq!(Bodies::new(BODY_TIME).read(request("application/json", body)).await.unwrap().bytes, "{\"a\":[1,2]}");
    }

    #[rstest]
    #[case(BODY_BYTES, Ok(BODY_BYTES))]
    #[case(BODY_BYTES + 1, Err(StatusCode::PAYLOAD_TOO_LARGE))]
    #[tokio::test]
    async fn the_longest_body_ends_at_the_limit(#[case] length: usize, #[case] expected: Result<usize, StatusCode>) {
        let bodies = Bodies::new(BODY_TIME);
        let read = bodies.read(request("application/json", vec![b' '; length])).await;
        assert_eq!(read.map(|read| read.bytes.len()), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_without_room_is_refused_and_a_small_one_is_not() {
        let bodies = Bodies::new(BODY_TIME);
        let _all = bodies.large.acquire_many((LARGE_BODIES / UNIT) as u32).await.unwrap();
        let large = Request::post("/").header(CONTENT_TYPE, "application/json").header(CONTENT_LENGTH, SMALL_BODY + 1);
        let refused = bodies.read(large.body(Body::from(vec![b' '; SMALL_BODY + 1])).unwrap()).await;
        assert_eq!(refused.map(|_| ()), Err(StatusCode::SERVICE_UNAVAILABLE));
        let small = Request::post("/").header(CONTENT_TYPE, "application/json").header(CONTENT_LENGTH, 2);
        assert!(bodies.read(small.body(Body::from("{}")).unwrap()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_body_and_then_silence_is_given_up() {
        let silent = futures_util::stream::pending::<Result<Bytes, std::convert::Infallible>>();
        let read = Bodies::new(BODY_TIME).read(request("application/json", Body::from_stream(silent))).await.map(|_| ());
        assert_eq!(read, Err(StatusCode::REQUEST_TIMEOUT));
    }
}
