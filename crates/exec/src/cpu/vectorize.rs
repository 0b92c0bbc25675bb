//! Loops compiled several times, for the widest vectors that the machine at hand turns out to have.

/// Defines a function whose body is compiled for AVX-512, for AVX2 with FMA, and for the target's baseline; a call
/// picks one by what pulp detects, and the body gets pulp's token of it. Plain loops over slices become vector code by
/// themselves; sums, whose order the compiler must not change, are written with the token's operations.
/// Whatever the body calls must be `#[inline(always)]`, or it is compiled for the baseline only. That goes for closures
/// too, which can't be marked: they may hold plain arithmetic, but no operations of the token.
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
                // SAFETY: whoever holds a V4 has checked that the machine has every feature enabled for `avx512`.
                #[cfg(target_arch = "x86_64")]
                pulp::Arch::V4(simd) => unsafe { avx512(simd $(, $arg)*) },
                // SAFETY: whoever holds a V3 has checked that the machine has every feature enabled for `avx2`.
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
