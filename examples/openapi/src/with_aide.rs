//! With aide: call [`rejected`] for each operation behind the layer.

use aide::OperationOutput;
use aide::axum::ApiRouter;
use aide::axum::routing::post_with;
use aide::generate::GenContext;
use aide::openapi::{
    Header, HeaderStyle, MediaType, OpenApi, Operation, ParameterSchemaOrContent, ReferenceOr, Response, SchemaObject,
};
use aide::transform::TransformOperation;
use schemars::{JsonSchema, Schema};

/// A problem (RFC 9457).
#[derive(JsonSchema)]
#[allow(dead_code, reason = "documents the body, which the layer writes")]
struct Problem {
    /// The kind of the problem.
    #[schemars(rename = "type")]
    kind: String,
    title: String,
    status: u16,
    detail: Option<String>,
    /// The names of the limits that reject the request.
    #[schemars(rename = "violated-policies")]
    violated_policies: Option<Vec<String>>,
    /// Why the client is blocked.
    #[schemars(rename = "block-reason")]
    block_reason: Option<String>,
}

const FIELDS: [(&str, &str); 4] = [
    ("retry-after", "Seconds until a retry succeeds."),
    ("ratelimit", "Per limit: what remains (`r`), and the seconds until more is available (`t`)."),
    ("ratelimit-policy", "Per limit: the quota (`q`), and its window in seconds (`w`)."),
    ("cache-control", "`no-store`"),
];

/// Documents what the layer answers in place of the handler.
fn rejected(operation: TransformOperation<'_>) -> TransformOperation<'_> {
    operation.response::<429, OverLimit>().response::<400, Rejected>().response::<503, Rejected>()
}

struct Rejected;

impl OperationOutput for Rejected {
    type Inner = Problem;

    fn operation_response(context: &mut GenContext, _operation: &mut Operation) -> Option<Response> {
        let body = MediaType { schema: Some(schema::<Problem>(context)), ..MediaType::default() };
        let content = [("application/problem+json".to_owned(), body)].into_iter().collect();
        let description = "The layer rejects the request: no key, or no decision.".to_owned();
        Some(Response { description, content, ..Response::default() })
    }
}

struct OverLimit;

impl OperationOutput for OverLimit {
    type Inner = Problem;

    fn operation_response(context: &mut GenContext, operation: &mut Operation) -> Option<Response> {
        let field = |(name, description): (&str, &str)| {
            let schema = if name == "retry-after" { schema::<u64>(context) } else { schema::<String>(context) };
            let header = Header {
                description: Some(description.to_owned()),
                style: HeaderStyle::Simple,
                required: false,
                deprecated: None,
                format: ParameterSchemaOrContent::Schema(schema),
                example: None,
                examples: [].into(),
                extensions: [].into(),
            };
            (name.to_owned(), ReferenceOr::Item(header))
        };
        let headers = FIELDS.into_iter().map(field).collect();
        let description = "Too many requests. Wait for `Retry-After`; without the field, no retry succeeds.".to_owned();
        Some(Response { description, headers, ..Rejected::operation_response(context, operation)? })
    }
}

fn schema<T: JsonSchema>(context: &mut GenContext) -> SchemaObject {
    let json_schema: Schema = context.schema.subschema_for::<T>();
    SchemaObject { json_schema, external_docs: None, example: None }
}

pub(crate) fn document() -> OpenApi {
    let mut document = OpenApi::default();
    let router: ApiRouter = ApiRouter::new().api_route("/orders", post_with(super::order, rejected));
    let _: axum::Router = router.finish_api(&mut document);
    document
}
