//! Macros for traits that types implement in one way. A derive would require the trait of each type parameter.

/// Implements `Debug` for a type: with its name, and with the named fields, or with values computed from a `|pattern|`.
macro_rules! impl_debug {
    ($([$($generics:tt)*])? $name:ident $(<$($argument:tt),*>)? { $($field:ident),* }) => {
        impl_debug!($([$($generics)*])? $name $(<$($argument),*>)? |Self { $($field,)* .. }| { $($field: $field),* });
    };
    ($([$($generics:tt)*])? $name:ident $(<$($argument:tt),*>)? |$this:pat_param| {
        $($field:ident: $value:expr),* $(,)?
    }) => {
        impl $(<$($generics)*>)? ::std::fmt::Debug for $name $(<$($argument),*>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &$value))*.finish_non_exhaustive()
            }
        }
    };
}

/// Implements `Clone` for a type with the named fields.
macro_rules! impl_clone {
    ([$($generics:tt)*] $name:ident <$($argument:tt),*> { $($field:tt),* }) => {
        impl<$($generics)*> Clone for $name <$($argument),*> {
            fn clone(&self) -> Self {
                Self { $($field: self.$field.clone()),* }
            }
        }
    };
}

/// Implements `Default` for a type by its function `new`.
macro_rules! impl_default {
    ($([$($generics:tt)*])? $name:ident $(<$($argument:tt),*>)?) => {
        impl $(<$($generics)*>)? Default for $name $(<$($argument),*>)? {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}
