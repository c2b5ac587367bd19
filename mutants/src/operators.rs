//! The mutations: which operator, method and value is replaced by which.

use quote::quote;
use syn::{BinOp, Expr, ReturnType, Stmt, Type, parse_quote};

/// Returns the operators that replace `op`: the other boundary and the negation of a comparison, and two other operators
/// of arithmetic.
pub(crate) fn alternatives(op: &BinOp) -> Vec<BinOp> {
    match op {
        BinOp::Lt(_) => vec![parse_quote!(<=), parse_quote!(>=)],
        BinOp::Le(_) => vec![parse_quote!(<), parse_quote!(>)],
        BinOp::Gt(_) => vec![parse_quote!(>=), parse_quote!(<=)],
        BinOp::Ge(_) => vec![parse_quote!(>), parse_quote!(<)],
        BinOp::Eq(_) => vec![parse_quote!(!=)],
        BinOp::Ne(_) => vec![parse_quote!(==)],
        BinOp::Add(_) => vec![parse_quote!(-), parse_quote!(*)],
        BinOp::Sub(_) => vec![parse_quote!(+), parse_quote!(/)],
        BinOp::Mul(_) => vec![parse_quote!(+), parse_quote!(/)],
        BinOp::Div(_) => vec![parse_quote!(*), parse_quote!(%)],
        BinOp::Rem(_) => vec![parse_quote!(/), parse_quote!(+)],
        BinOp::BitAnd(_) => vec![parse_quote!(|), parse_quote!(^)],
        BinOp::BitOr(_) => vec![parse_quote!(&), parse_quote!(^)],
        BinOp::BitXor(_) => vec![parse_quote!(|), parse_quote!(&)],
        BinOp::Shl(_) => vec![parse_quote!(>>)],
        BinOp::Shr(_) => vec![parse_quote!(<<)],
        BinOp::AddAssign(_) => vec![parse_quote!(-=), parse_quote!(*=)],
        BinOp::SubAssign(_) => vec![parse_quote!(+=), parse_quote!(/=)],
        BinOp::MulAssign(_) => vec![parse_quote!(+=), parse_quote!(/=)],
        BinOp::DivAssign(_) => vec![parse_quote!(*=), parse_quote!(%=)],
        BinOp::BitAndAssign(_) => vec![parse_quote!(|=)],
        BinOp::BitOrAssign(_) => vec![parse_quote!(&=)],
        _ => Vec::new(),
    }
}

pub(crate) fn is_comparison(op: &BinOp) -> bool {
    matches!(op, BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) | BinOp::Eq(_) | BinOp::Ne(_))
}

pub(crate) fn is_assignment(op: &BinOp) -> bool {
    let text = quote!(#op).to_string();
    text.ends_with('=') && !is_comparison(op)
}

/// The methods that replace a method.
pub(crate) fn methods(name: &str) -> &'static [&'static str] {
    match name {
        "min" => &["max"],
        "max" => &["min"],
        "saturating_add" => &["saturating_sub", "wrapping_add"],
        "saturating_sub" => &["saturating_add", "wrapping_sub"],
        "saturating_mul" => &["saturating_add", "wrapping_mul"],
        "wrapping_add" => &["wrapping_sub", "saturating_add"],
        "wrapping_sub" => &["wrapping_add", "saturating_sub"],
        "checked_add" => &["checked_sub"],
        "checked_sub" => &["checked_add"],
        "checked_mul" => &["checked_add"],
        "div_ceil" => &["wrapping_div"],
        "any" => &["all"],
        "all" => &["any"],
        "is_some" => &["is_none"],
        "is_none" => &["is_some"],
        "is_ok" => &["is_err"],
        "is_err" => &["is_ok"],
        "is_some_and" => &["is_none_or"],
        "is_none_or" => &["is_some_and"],
        "first" => &["last"],
        "last" => &["first"],
        "front" => &["back"],
        "back" => &["front"],
        "front_mut" => &["back_mut"],
        "back_mut" => &["front_mut"],
        "push_front" => &["push_back"],
        "push_back" => &["push_front"],
        "pop_front" => &["pop_back"],
        "pop_back" => &["pop_front"],
        "min_by_key" => &["max_by_key"],
        "max_by_key" => &["min_by_key"],
        "rev" => &["into_iter"],
        "skip_while" => &["take_while"],
        "take_while" => &["skip_while"],
        _ => &[],
    }
}

/// Returns whether the receiver and the argument are numbers, so that they can be evaluated first.
pub(crate) fn takes_number(method: &str) -> bool {
    ["min", "max", "div_ceil"].contains(&method)
        || ["saturating_", "wrapping_", "checked_"].iter().any(|prefix| method.starts_with(prefix))
}

/// Returns the values that a function may return instead of its own.
pub(crate) fn values(output: &ReturnType, is_const: bool) -> Vec<Expr> {
    let ReturnType::Type(_, ty) = output else { return vec![parse_quote!(())] };
    let Type::Path(path) = &**ty else {
        return if is_const || !matches!(**ty, Type::Tuple(_) | Type::Array(_)) {
            Vec::new()
        } else {
            vec![parse_quote!(::core::default::Default::default())]
        };
    };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    match last.ident.to_string().as_str() {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i64" => vec![parse_quote!(0), parse_quote!(1)],
        "bool" => vec![parse_quote!(true), parse_quote!(false)],
        "Duration" => vec![parse_quote!(::std::time::Duration::ZERO)],
        "Option" => vec![parse_quote!(None)],
        "Result" => Vec::new(),
        _ if is_const => Vec::new(),
        _ => vec![parse_quote!(::core::default::Default::default())],
    }
}

/// Returns whether a function's body is this value alone.
pub(crate) fn is_body(block: &syn::Block, value: &Expr) -> bool {
    let is_unused =
        |statement: &&Stmt| matches!(statement, Stmt::Local(local) if matches!(local.pat, syn::Pat::Wild(_)));
    let statements: Vec<_> = block.stmts.iter().filter(|statement| !is_unused(statement)).collect();
    let [Stmt::Expr(body, None)] = statements.as_slice() else { return false };
    let text = |expr: &Expr| quote!(#expr).to_string().replace(' ', "");
    let (body, value) = (text(body).replace("Self::default", "Default::default"), text(value));
    body == value || (body.contains("::") && value.ends_with(&format!("::{body}")))
}

/// Returns a description of a statement that can be deleted.
pub(crate) fn deletion(statement: &Stmt) -> Option<&'static str> {
    let Stmt::Expr(expr, Some(_)) = statement else { return None };
    match expr {
        Expr::Return(_) => Some("early return"),
        Expr::Break(_) => Some("break"),
        Expr::Continue(_) => Some("continue"),
        Expr::Assign(_) => Some("assignment"),
        Expr::Binary(binary) if is_assignment(&binary.op) => Some("assignment"),
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Try(_) | Expr::Await(_) => Some("call"),
        _ => None,
    }
}

/// Returns whether nothing after the statement runs.
pub(crate) fn diverges(statement: &Stmt) -> bool {
    matches!(statement, Stmt::Expr(Expr::Return(_) | Expr::Break(_) | Expr::Continue(_), _))
}

/// Returns whether a condition contains `let`, so that it is not an expression.
pub(crate) fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

pub(crate) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether the item exists only in tests.
pub(crate) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = quote!(#attribute).to_string().replace(' ', "");
        text == "#[test]" || text.starts_with("#[cfg(test") || text.contains("cfg(all(test") || text == "#[cfg(loom)]"
    })
}

/// A function with its mutants is too long to be copied into each caller: the build would take several times as long.
pub(crate) fn remove_inline(attributes: &mut Vec<syn::Attribute>) {
    attributes.retain(|attribute| !attribute.path().is_ident("inline"));
}

pub(crate) fn is_debug(block: &syn::ItemImpl) -> bool {
    block.trait_.as_ref().is_some_and(|(_, path, _)| path.segments.last().is_some_and(|name| name.ident == "Debug"))
}
