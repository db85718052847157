/* Operations of traced formulas, by numpy's names, on doubles: conditions are 0 and 1. */
#include <math.h>
#if defined __x86_64__ && defined __GLIBC__ && !defined __clang__
/* Of several numbers at once, where the C library has such functions. */
__attribute__((__simd__("notinbranch"))) double pow(double, double);
__attribute__((__simd__("notinbranch"))) double exp(double);
#endif
/* Constants as Python writes them. */
#define inf INFINITY
#define True 1
#define False 0
#define np_add(a, b) (a + b)
#define np_subtract(a, b) (a - b)
#define np_multiply(a, b) (a * b)
#define np_divide(a, b) (a / b)
#define np_power(a, b) pow(a, b)
#define np_negative(a) (-(a))
#define np_sqrt(a) sqrt(a)
#define np_exp(a) exp(a)
#define np_floor(a) floor(a)
#define np_ceil(a) ceil(a)
#define np_int(a) trunc(a)
#define np_float(a) (a)
#define np_maximum(a, b) (a >= b ? a : b)
#define np_minimum(a, b) (a <= b ? a : b)
#define np_less(a, b) (a < b)
#define np_less_equal(a, b) (a <= b)
#define np_greater(a, b) (a > b)
#define np_greater_equal(a, b) (a >= b)
#define np_equal(a, b) (a == b)
#define np_not_equal(a, b) (a != b)
#define np_logical_not(a) (!(a))
#define np_bitwise_and(a, b) (double)((long)(a) & (long)(b))
#define np_bitwise_or(a, b) (double)((long)(a) | (long)(b))
#define np_where(condition, yes, no) (condition ? yes : no)
#define np_take(table, place) table[(long)(place)]
