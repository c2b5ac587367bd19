//! Rewrites a source file so that each mutant in it can be selected at run time.
//!
//! `a < b` becomes `match (&(a), &(b)) { (l, r) => if on(1) { l <= r } else { l < r } }`, and so on: one build contains
//! all mutants. [`operators`](crate::operators) has the mutations of operators and methods.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, Lit, Stmt, UnOp, parse_quote};

use crate::operators;

/// One change of the source.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub(crate) number: u32,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) function: String,
    /// What the change does, such as "`<` to `<=`".
    pub(crate) change: String,
    /// Identifies the mutant in builds of other versions.
    pub(crate) key: String,
    /// The text of the line, with a mark before the change.
    pub(crate) source: String,
}

impl Mutant {
    /// Returns the name of this mutant in `mutants/equivalent.txt`. It holds no line number, so that a change elsewhere in
    /// the file does not matter.
    pub(crate) fn listed_as(&self) -> String {
        format!("{} `{}`: {}", self.file, self.function, self.change)
    }
}

/// Returns a line with a mark before the character `column`.
pub(crate) fn marked(line: &str, column: usize) -> String {
    let (before, after): (String, String) = (line.chars().take(column).collect(), line.chars().skip(column).collect());
    format!("{}»{}", before.trim_start(), after.trim_end())
}

/// The mutants of all files, and what is not mutated.
#[derive(Default)]
pub(crate) struct Mutants {
    pub(crate) list: Vec<Mutant>,
    /// The number of expressions that are not mutated, for each reason.
    pub(crate) skipped: BTreeMap<&'static str, usize>,
    /// Mutants that do not compile: file, source line and change.
    pub(crate) invalid: BTreeSet<String>,
    /// The number of mutants that do not compile.
    pub(crate) left_out: usize,
    next: u32,
}

impl Mutants {
    /// Returns the rewritten text of a file.
    pub(crate) fn rewrite(&mut self, file: &str, text: &str) -> String {
        let mut syntax = syn::parse_file(text).unwrap_or_else(|error| panic!("parsing {file} failed: {error}"));
        let mut rewriter =
            Rewriter { mutants: self, file, lines: text.lines().collect(), function: String::new(), in_const: false };
        rewriter.visit_file_mut(&mut syntax);
        prettyplease::unparse(&syntax)
    }

    /// Removes the mutants of the previous calls, but not which are invalid.
    pub(crate) fn restart(&mut self) {
        self.list.clear();
        self.left_out = 0;
        self.skipped.clear();
        self.next = 0;
    }
}

struct Rewriter<'a> {
    mutants: &'a mut Mutants,
    file: &'a str,
    lines: Vec<&'a str>,
    function: String,
    in_const: bool,
}

impl Rewriter<'_> {
    /// Adds a mutant. Returns the condition under which it is active, or `None` if it is invalid.
    fn add(&mut self, span: Span, change: String) -> Option<TokenStream> {
        let start = span.start();
        // The text of the line instead of its number, so that a change elsewhere in the file does not matter.
        let line = self.lines[start.line - 1];
        let key = format!("{} {} {} {change}", self.file, line.trim(), start.column);
        let source = marked(line, start.column);
        if self.mutants.invalid.contains(&key) {
            self.mutants.left_out += 1;
            return None;
        }
        self.mutants.next += 1;
        let number = self.mutants.next;
        self.mutants.list.push(Mutant {
            number,
            file: self.file.to_owned(),
            line: start.line,
            column: start.column + 1,
            function: self.function.clone(),
            change,
            key,
            source,
        });
        Some(quote!(crate::__mutants::on(#number)))
    }

    fn skip(&mut self, reason: &'static str) {
        *self.mutants.skipped.entry(reason).or_default() += 1;
    }

    /// Returns an expression that is the first alternative whose mutant is active, or else the original.
    fn choose(&mut self, span: Span, original: &TokenStream, alternatives: Vec<(String, TokenStream)>) -> Option<Expr> {
        let mut chosen = original.clone();
        let mut is_changed = false;
        for (change, alternative) in alternatives {
            if let Some(on) = self.add(span, change) {
                chosen = quote!(if #on { #alternative } else { #chosen });
                is_changed = true;
            }
        }
        is_changed.then(|| parse_quote!((#chosen)))
    }

    fn binary(&mut self, binary: &syn::ExprBinary) -> Option<Expr> {
        let (left, right, op) = (&binary.left, &binary.right, &binary.op);
        let span = op.span();
        let from = quote!(#op).to_string();
        if matches!(op, BinOp::And(_) | BinOp::Or(_)) {
            let (to, is_and) = if matches!(op, BinOp::And(_)) { ("||", true) } else { ("&&", false) };
            let on = self.add(span, format!("`{from}` to `{to}`"))?;
            // `l != on` is `l` if the mutant is not active. The right side is evaluated only if it counts.
            return Some(parse_quote!((match #left { l => if (l == #is_and) != #on { #right } else { l } })));
        }
        let alternatives: Vec<BinOp> = operators::alternatives(op);
        let described = |to: &BinOp| format!("`{from}` to `{}`", quote!(#to));
        if operators::is_assignment(op) {
            let original = quote!(#left #op r);
            let alternatives = alternatives.iter().map(|to| (described(to), quote!(#left #to r))).collect();
            let chosen = self.choose(span, &original, alternatives)?;
            return Some(parse_quote!(match #right { r => #chosen }));
        }
        let alternatives = alternatives.iter().map(|to| (described(to), quote!(l #to r))).collect();
        let chosen = self.choose(span, &quote!(l #op r), alternatives)?;
        // In a `const fn`, only numbers have operators. Elsewhere a comparison must not move its operands.
        Some(if operators::is_comparison(op) && !self.in_const {
            parse_quote!((match (&(#left), &(#right)) { (l, r) => #chosen }))
        } else {
            parse_quote!((match (#left, #right) { (l, r) => #chosen }))
        })
    }

    fn literal(&mut self, literal: &syn::ExprLit) -> Option<Expr> {
        let span = literal.span();
        match &literal.lit {
            Lit::Int(int) => {
                let value: u128 = int.base10_parse().ok()?;
                let number = |value: u128| {
                    let text = format!("{value}{}", int.suffix());
                    Lit::Int(syn::LitInt::new(&text, span))
                };
                let mut alternatives = vec![value.checked_add(1)?];
                alternatives.extend(value.checked_sub(1));
                let alternatives = alternatives.into_iter().map(|other| {
                    let to = number(other);
                    (format!("`{int}` to `{}`", quote!(#to)), quote!(#to))
                });
                let alternatives = alternatives.collect();
                self.choose(span, &quote!(#literal), alternatives)
            }
            Lit::Bool(bool) => {
                let to = !bool.value;
                self.choose(span, &quote!(#literal), vec![(format!("`{}` to `{to}`", bool.value), quote!(#to))])
            }
            _ => None,
        }
    }

    fn method(&mut self, call: &syn::ExprMethodCall) -> Option<Expr> {
        let method = call.method.to_string();
        let others = operators::methods(&method);
        if others.is_empty() {
            return None;
        }
        let span = call.method.span();
        let renamed = |to: &str, receiver: TokenStream, args: TokenStream| {
            let name = syn::Ident::new(to, span);
            quote!(#receiver.#name(#args))
        };
        let (receiver, args) = (&call.receiver, &call.args);
        if operators::takes_number(&method) && args.len() == 1 {
            let alternatives =
                others.iter().map(|to| (format!("`{method}` to `{to}`"), renamed(to, quote!(l), quote!(r))));
            let alternatives = alternatives.collect();
            let chosen = self.choose(span, &renamed(&method, quote!(l), quote!(r)), alternatives)?;
            // The receiver may be a reference that is used again.
            return Some(if self.in_const {
                parse_quote!((match (#receiver, #args) { (l, r) => #chosen }))
            } else {
                parse_quote!((match ((#receiver).to_owned(), #args) { (l, r) => #chosen }))
            });
        }
        let alternatives =
            others.iter().map(|to| (format!("`{method}` to `{to}`"), renamed(to, quote!(#receiver), quote!(#args))));
        let alternatives = alternatives.collect();
        self.choose(span, &quote!(#call), alternatives)
    }

    /// Makes a condition constant.
    fn condition(&mut self, span: Span, condition: &mut Expr) {
        if operators::has_let(condition) {
            return;
        }
        let original = quote!(#condition);
        let alternatives = [true, false].map(|to| (format!("condition to `{to}`"), quote!(#to)));
        if let Some(chosen) = self.choose(span, &original, alternatives.into()) {
            *condition = chosen;
        }
    }

    /// Adds the mutants that return a constant instead of running the function.
    fn body(&mut self, signature: &syn::Signature, block: &mut syn::Block, original: &syn::Block) {
        if block.stmts.is_empty() {
            return;
        }
        let span = signature.ident.span();
        for value in operators::values(&signature.output, self.in_const) {
            if operators::is_body(original, &value) {
                self.skip("body that is the value already");
                continue;
            }
            let description = format!("body to `{}`", quote!(#value));
            if let Some(on) = self.add(span, description) {
                block.stmts.insert(0, parse_quote!(if #on { return #value; }));
            }
        }
    }

    /// Deletes statements. A `return` at the end of a block can be deleted only if the block has no value.
    fn statements(&mut self, block: &mut syn::Block, has_no_value: bool) {
        let last = block.stmts.len().saturating_sub(1);
        for (index, statement) in block.stmts.iter_mut().enumerate() {
            let span = statement.span();
            let deletes = operators::deletion(statement)
                .filter(|_| index < last || has_no_value || !operators::diverges(statement));
            self.visit_stmt_mut(statement);
            let Some(what) = deletes else { continue };
            if let Some(on) = self.add(span, format!("{what} deleted"))
                && let Stmt::Expr(expr, _) = &statement
            {
                *statement = parse_quote!(if !#on { #expr; });
            }
        }
    }

    fn in_function(&mut self, signature: &syn::Signature, block: &mut syn::Block) {
        let outer = (std::mem::take(&mut self.function), self.in_const);
        (self.function, self.in_const) = (signature.ident.to_string(), signature.constness.is_some());
        let original = block.clone();
        self.visit_block_mut(block);
        self.body(signature, block, &original);
        (self.function, self.in_const) = outer;
    }
}

impl VisitMut for Rewriter<'_> {
    fn visit_item_mut(&mut self, item: &mut syn::Item) {
        match item {
            _ if operators::is_test_only(operators::attributes(item)) => {}
            syn::Item::Const(_) | syn::Item::Static(_) => self.skip("constant item"),
            syn::Item::Macro(_) => self.skip("macro definition"),
            syn::Item::Impl(block) if operators::is_debug(block) => {}
            _ => visit_mut::visit_item_mut(self, item),
        }
    }

    fn visit_impl_item_mut(&mut self, item: &mut syn::ImplItem) {
        match item {
            syn::ImplItem::Const(_) => self.skip("constant item"),
            syn::ImplItem::Fn(function) if operators::is_test_only(&function.attrs) => {}
            syn::ImplItem::Fn(function) => {
                operators::remove_inline(&mut function.attrs);
                self.in_function(&function.sig.clone(), &mut function.block);
            }
            _ => {}
        }
    }

    fn visit_trait_item_mut(&mut self, item: &mut syn::TraitItem) {
        if let syn::TraitItem::Fn(function) = item
            && let Some(block) = &mut function.default
        {
            self.in_function(&function.sig, block);
        }
    }

    fn visit_item_fn_mut(&mut self, function: &mut syn::ItemFn) {
        operators::remove_inline(&mut function.attrs);
        self.in_function(&function.sig.clone(), &mut function.block);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        self.statements(block, false);
    }

    fn visit_expr_if_mut(&mut self, branch: &mut syn::ExprIf) {
        let span = branch.cond.span();
        self.visit_expr_mut(&mut branch.cond);
        self.condition(span, &mut branch.cond);
        self.statements(&mut branch.then_branch, branch.else_branch.is_none());
        if let Some((_, other)) = &mut branch.else_branch {
            self.visit_expr_mut(other);
        }
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Repeat(repeat) => return self.visit_expr_mut(&mut repeat.expr),
            Expr::Const(_) => return self.skip("constant expression"),
            Expr::Macro(_) => return self.skip("macro call"),
            _ => visit_mut::visit_expr_mut(self, expr),
        }
        let changed = match expr {
            Expr::Binary(_) if operators::has_let(expr) => None,
            Expr::Binary(binary) => self.binary(&binary.clone()),
            Expr::Lit(literal) => self.literal(&literal.clone()),
            Expr::MethodCall(call) => self.method(&call.clone()),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let inner = unary.expr.clone();
                self.choose(unary.span(), &quote!(!x), vec![("`!` removed".to_owned(), quote!(x))])
                    .map(|chosen| parse_quote!((match #inner { x => #chosen })))
            }
            _ => None,
        };
        if let Some(changed) = changed {
            *expr = changed;
        }
    }

    fn visit_arm_mut(&mut self, arm: &mut syn::Arm) {
        let span = arm.guard.as_ref().map(|(_, guard)| guard.span());
        visit_mut::visit_arm_mut(self, arm);
        if let (Some(span), Some((_, guard))) = (span, &mut arm.guard) {
            self.condition(span, guard);
        }
    }

    fn visit_stmt_macro_mut(&mut self, _call: &mut syn::StmtMacro) {
        self.skip("macro call");
    }

    // Nothing in a pattern, a type or an attribute can be chosen at run time.
    fn visit_pat_mut(&mut self, pattern: &mut syn::Pat) {
        if matches!(pattern, syn::Pat::Lit(_) | syn::Pat::Range(_)) {
            self.skip("pattern");
        }
    }

    fn visit_type_mut(&mut self, _type: &mut syn::Type) {}

    fn visit_path_arguments_mut(&mut self, _arguments: &mut syn::PathArguments) {}

    // Those of a method, such as `as_chunks::<4>()`.
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _arguments: &mut syn::AngleBracketedGenericArguments) {}

    fn visit_attribute_mut(&mut self, _attribute: &mut syn::Attribute) {}
}
