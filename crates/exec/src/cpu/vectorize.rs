//! Loops compiled for several instruction sets, of which the machine's widest is used.

/// Defines a function whose body is compiled for AVX-512, for AVX2 with FMA, and for the target's baseline; a call
/// picks one by what pulp detects, and the body gets pulp's token of it. The compiler vectorizes plain loops over
/// slices; sums, whose order it must not change, are written with the token's operations. Functions that the body calls
/// must be `#[inline(always)]`, or they are compiled for the baseline only. Closures can't be marked so: they may
/// contain plain arithmetic, but no operations of the token.
macro_rules! vectorized {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident<$simd_type:ident: Simd>($simd:ident: $bound:ident $(, $arg:ident: $ty:ty)* $(,)?)
        $(-> $ret:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$simd_type: pulp::Simd>($simd: $simd_type $(, $arg: $ty)*) $(-> $ret)? {
                // Plain loops need no token.
                let _ = $simd;
                $body
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx512(simd: pulp::x86::V4 $(, $arg: $ty)*) $(-> $ret)? {
                body(simd $(, $arg)*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2(simd: pulp::x86::V3 $(, $arg: $ty)*) $(-> $ret)? {
                body(simd $(, $arg)*)
            }

            match pulp::Arch::new() {
                // SAFETY: a V4 exists only if the machine has every feature enabled for `avx512`.
                #[cfg(target_arch = "x86_64")]
                pulp::Arch::V4(simd) => unsafe { avx512(simd $(, $arg)*) },
                // SAFETY: a V3 exists only if the machine has every feature enabled for `avx2`.
                #[cfg(target_arch = "x86_64")]
                pulp::Arch::V3(simd) => unsafe { avx2(simd $(, $arg)*) },
                #[cfg(target_arch = "aarch64")]
                pulp::Arch::Neon(simd) => body(simd $(, $arg)*),
                _ => body(pulp::Scalar $(, $arg)*),
            }
        }
    )*};
}

pub(super) use vectorized;
