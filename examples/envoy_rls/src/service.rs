//! The answers to Envoy.

use std::convert::Infallible;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use tonic::{Request, Response, Status, async_trait};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::FromExtension;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{Costs, Http, LimitStatus, RateLimitInfo, RateLimitLayer, Verdict};

use crate::limits::{AnyError, Call, Entries, Limits, Rule};

type Body = Full<bytes::Bytes>;

pub(crate) struct Service {
    limits: Limits,
    /// The layer around a service that answers 200: its response has the fields, and the decision as an extension.
    layer: Answers,
    /// The same for limits whose usage is reported: what they are asked for is held, and the reported usage is charged,
    /// also beyond the limit.
    reports: Answers,
}

type Answers = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// What a request costs: at its admission, and what is charged then.
#[derive(Clone, Copy)]
struct Hits {
    held: Costs,
    charged: Costs,
}

impl Hits {
    fn of<T>(extensions: &http::Extensions, part: impl Fn(&Self) -> T) -> Option<T> {
        extensions.get::<Self>().map(part)
    }
}

impl Service {
    pub(crate) fn new(limits: Limits, redis_url: Option<&str>) -> Result<Self, AnyError> {
        let layer = RateLimitLayer::new(FromExtension::<Call>::new(), limits.build(redis_url)?)
            .cost(|request: &http::Request<Body>| {
                Hits::of(request.extensions(), |hits| hits.held).unwrap_or_else(|| 1.into())
            })
            .responder(Http::new().headers(Headers::new().response_extension(true)));
        let allow = service_fn(async |request: http::Request<Body>| {
            let mut response = http::Response::new(Body::default());
            *response.extensions_mut() = request.into_parts().0.extensions;
            Ok(response)
        });
        let reports = layer.clone().settle(|held: u64, response: Result<&http::Response<Body>, &Infallible>| {
            let charged = response.ok().and_then(|response| Hits::of(response.extensions(), |hits| hits.charged));
            charged.unwrap_or_else(|| held.into())
        });
        let [layer, reports] =
            [BoxCloneSyncService::new(layer.layer(allow)), BoxCloneSyncService::new(reports.layer(allow))];
        Ok(Self { limits, layer, reports })
    }

    /// Reads the descriptors, and the costs of the limits that apply to them. `hits` is the cost in no unit.
    fn read(&self, descriptors: Vec<RateLimitDescriptor>, hits: u64) -> Result<(Call, Hits), Status> {
        let (mut call, mut costs) = (Call::default(), Hits { held: hits.into(), charged: hits.into() });
        let mut applied: Vec<&str> = Vec::new();
        let mut counted: Vec<&str> = Vec::new();
        for descriptor in descriptors {
            let entries: Entries = descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
            let own = descriptor.hits_addend.map_or(hits, |own| own.value);
            for rule in self.rules_of(&entries) {
                let name = rule.policy.name();
                let refuse = |problem: &str| Err(Status::invalid_argument(format!("limit {name:?}: {problem}")));
                if descriptor.is_negative_hits {
                    // A client that takes back more than it was charged would be allowed more than the limit.
                    return refuse("negative hits are refused: charged hits are never returned");
                }
                if descriptor.limit.is_some() {
                    return refuse("a limit in the request is refused; set the quota in the file of the limits");
                }
                if applied.contains(&name) {
                    return refuse("it applies to two descriptors of the request; send one of the two");
                }
                applied.push(name);
                if rule.is_reported && own > 0 {
                    call.reported.push(name.to_owned());
                }
                match rule.unit {
                    Some(unit) if counted.contains(&unit) => {}
                    Some(unit) => {
                        counted.push(unit);
                        // An admission needs one free unit, and charges none. A report needs none.
                        let held = if rule.is_reported { u64::from(own == 0) } else { own };
                        costs = Hits { held: costs.held.add(unit, held), charged: costs.charged.add(unit, own) };
                    }
                    None if own == hits => {}
                    None => return refuse("its descriptor has hits_addend; give the limit a `unit` in the file"),
                }
            }
            call.descriptors.push(entries);
        }
        Ok((call, costs))
    }

    /// Decides on one part of a call.
    async fn decide(&self, call: Call, hits: Hits) -> http::Response<Body> {
        let is_reported =
            |rule: &Rule| rule.is_reported && call.descriptors.iter().any(|entries| rule.matches(entries));
        let has_reports = self.limits.rules.iter().any(is_reported);
        let layer = if has_reports { &self.reports } else { &self.layer };
        let mut question = http::Request::new(Body::default());
        question.extensions_mut().insert(call);
        question.extensions_mut().insert(hits);
        let Ok(answer) = layer.clone().oneshot(question).await;
        answer
    }

    fn rules_of(&self, entries: &Entries) -> impl Iterator<Item = &Rule> {
        self.limits.rules.iter().filter(move |rule| rule.matches(entries))
    }

    /// Returns the status of a descriptor: of its limits, the one that is denied for longest or has the least left.
    fn status(&self, entries: &Entries, limits: &[LimitStatus]) -> DescriptorStatus {
        let enforced = limits.iter().filter(|limit| !limit.is_shadow());
        let own = enforced.filter_map(|limit| {
            let rule = self.rules_of(entries).find(|rule| rule.policy.name() == limit.name());
            rule.map(|rule| (rule, limit))
        });
        let Some((rule, limit)) = own.max_by_key(|(_, limit)| (wait(limit.verdict()), u64::MAX - limit.remaining()))
        else {
            return DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        };
        // Envoy sends `Retry-After` from the longest duration of the descriptors over the limit.
        let (code, until_reset) = match limit.verdict() {
            Verdict::Allowed | Verdict::AllowedAfter(_) => (Code::Ok, Some(limit.reset())),
            Verdict::Denied { retry_after } => (Code::OverLimit, Some(retry_after)),
            Verdict::ExceedsLimit => (Code::OverLimit, None),
        };
        DescriptorStatus {
            code: code.into(),
            current_limit: rule.policy.quota().map(|quota| RateLimit {
                name: rule.policy.name().to_owned(),
                requests_per_unit: u32::try_from(quota.limit()).unwrap_or(u32::MAX),
                unit: unit(quota.period(), rule.policy.calendar().is_some()).into(),
            }),
            limit_remaining: u32::try_from(limit.remaining()).unwrap_or(u32::MAX),
            duration_until_reset: until_reset.map(duration),
            quota: None,
        }
    }
}

#[async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let mut request = request.into_inner();
        if request.domain != self.limits.domain {
            let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
            let statuses = vec![status; request.descriptors.len()];
            return Ok(Response::new(RateLimitResponse {
                overall_code: Code::Ok.into(),
                statuses,
                ..Default::default()
            }));
        }
        let descriptors = std::mem::take(&mut request.descriptors);
        let (call, hits) = self.read(descriptors, u64::from(request.hits_addend.max(1)))?;
        let (mut answer, mut limits) = (None, Vec::new());
        // A report is no admission: it does not depend on the other limits, nor they on it.
        for is_report in [true, false] {
            if is_report && call.reported.is_empty() {
                continue;
            }
            let decided = self.decide(Call { is_report, ..call.clone() }, hits).await;
            if !matches!(decided.status(), StatusCode::OK | StatusCode::TOO_MANY_REQUESTS) {
                // Envoy allows or denies the request, as its `failure_mode_deny` says.
                let status = decided.status();
                return Err(Status::unavailable(format!("the limiter does not answer: status {status}")));
            }
            let decision = decided.extensions().get::<RateLimitInfo>().and_then(RateLimitInfo::decision);
            limits.extend(decision.iter().flat_map(|decision| decision.limits()).cloned());
            // The answer to an admission, unless no limit applies to it.
            if decision.is_some() || answer.is_none() {
                answer = Some(decided);
            }
        }
        let (parts, body) = answer.unwrap_or_default().into_parts();
        let code = if parts.status == StatusCode::OK { Code::Ok } else { Code::OverLimit };
        let field = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
            key: name.to_string(),
            // Envoy does not read `raw_value` here.
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
            ..HeaderValue::default()
        };
        let Ok(body) = body.collect().await;
        Ok(Response::new(RateLimitResponse {
            overall_code: code.into(),
            statuses: call.descriptors.iter().map(|entries| self.status(entries, &limits)).collect(),
            response_headers_to_add: parts.headers.iter().map(field).collect(),
            raw_body: body.to_bytes().to_vec(),
            ..RateLimitResponse::default()
        }))
    }
}

/// The wait of a limit: zero if it allows the request.
fn wait(verdict: Verdict) -> Duration {
    match verdict {
        Verdict::Allowed | Verdict::AllowedAfter(_) => Duration::ZERO,
        Verdict::Denied { retry_after } => retry_after,
        Verdict::ExceedsLimit => Duration::MAX,
    }
}

fn duration(duration: Duration) -> protobuf::Duration {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    protobuf::Duration { seconds, nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default() }
}

/// Returns the unit. The quota of a calendar has the days of the longest window.
fn unit(period: Duration, is_calendar: bool) -> Unit {
    match period.as_secs() {
        1 => Unit::Second,
        60 => Unit::Minute,
        3_600 => Unit::Hour,
        86_400 => Unit::Day,
        604_800 => Unit::Week,
        seconds if is_calendar && seconds == 31 * 86_400 => Unit::Month,
        seconds if is_calendar && seconds == 366 * 86_400 => Unit::Year,
        _ => Unit::Unknown,
    }
}
