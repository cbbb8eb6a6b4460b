//! Routes, and how a question is put to one.

pub(crate) mod routes;

use std::marker::PhantomData;

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest body of an ordinary question, in bytes.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Longest body of a question that carries a whole file, in bytes.
const FILE_BYTES_MAX: usize = 32 << 20;
/// What stands for itself in a URI (RFC 3986 2.3); all else is written as `%XX`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A route, the type of what it takes and of what it answers. What a [`Method::GET`] takes stands in the query.
#[derive(Debug)]
pub struct Endpoint<Body, Answer> {
    /// How it is asked.
    pub method: Method,
    /// Where, with `{name}` for the object that is meant.
    pub path: &'static str,
    /// Longest body that is read, in bytes.
    pub body_bytes_max: usize,
    types: PhantomData<fn(Body) -> Answer>,
}

impl<Body, Answer> Endpoint<Body, Answer> {
    const fn new(method: Method, path: &'static str) -> Self {
        Self { method, path, body_bytes_max: BODY_BYTES_MAX, types: PhantomData }
    }

    const fn of_files(method: Method, path: &'static str) -> Self {
        Self { method, path, body_bytes_max: FILE_BYTES_MAX, types: PhantomData }
    }
}

impl<Body: Serialize, Answer> Endpoint<Body, Answer> {
    /// Puts `body` to a route without `{name}`.
    #[must_use]
    pub fn ask(&self, body: &Body) -> Question<Answer> {
        self.ask_of("", body)
    }

    /// Puts `body` to the route of the object `name`.
    #[must_use]
    pub fn ask_of(&self, name: &str, body: &Body) -> Question<Answer> {
        let mut uri = self.path.replace("{name}", &escaped(name));
        // These types have neither maps with other keys than strings nor serializers that fail.
        let body = serde_json::to_value(body).unwrap_or_default();
        let body = match (&self.method, body) {
            (&Method::GET, Value::Object(fields)) => {
                let fields =
                    fields.iter().filter_map(|(key, value)| Some(format!("{key}={}", escaped(value.as_str()?))));
                uri = format!("{uri}?{}", fields.collect::<Vec<_>>().join("&"));
                None
            }
            (_, Value::Null) => None,
            (_, body) => Some(body.to_string()),
        };
        Question { method: self.method.clone(), uri, body, answer: PhantomData }
    }
}

/// What is sent to a node to be answered with an `Answer`.
#[derive(Debug)]
pub struct Question<Answer> {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub uri: String,
    /// JSON, if there is any.
    pub body: Option<String>,
    answer: PhantomData<fn() -> Answer>,
}

/// Why a node did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong, and what to do next.
    pub error: String,
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewUser, PolicyTest};

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let question = USER_REMOVE.ask_of("../groups/a?b#c", &());
        assert_eq!(question.uri, "/v1/users/..%2Fgroups%2Fa%3Fb%23c");
        assert_eq!((question.method, question.body), (Method::DELETE, None));
    }

    #[test]
    fn what_a_get_takes_stands_in_the_query_and_what_others_take_in_the_body() {
        let test = PolicyTest { user: "a&b".into(), service: "web".into(), proves: None };
        let question = POLICY_TEST.ask(&test);
        assert_eq!((question.uri.as_str(), question.body), ("/v1/policy/test?service=web&user=a%26b", None));
        let question = USERS_ADD.ask(&vec![NewUser { name: "alice".into(), ..NewUser::default() }]);
        assert!(question.body.is_some_and(|body| body.contains("alice")));
    }

    use routes::*;
}
