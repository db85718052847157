/* The leaves of all trees of each row, summed up; arrays as `Forest` has them, `features` of shape (features, rows). */
#include <stdint.h>
enum { BLOCK = 64 }; /* Rows walked at once, `forest.WALKED_AT_ONCE`. */
typedef uint8_t Block __attribute__((vector_size(BLOCK), aligned(1)));
void walk(const float *features, const uint8_t *feature, const float *border, const uint16_t *tree_splits,
    const int16_t *leaves, int64_t *restrict steps, uint8_t *restrict answers, const long rows,
    const long splits, const long depth, const long trees) {
  for (long start = 0; start < rows; start += BLOCK) {
    const long count = rows - start < BLOCK ? rows - start : BLOCK;
    int32_t sums[BLOCK] = {0};
    for (long split = 0; split < splits; split++)
      for (long row = 0; row < count; row++)
        answers[split*BLOCK + row] = features[feature[split]*rows + start + row] > border[split];
    for (long tree = 0; tree < trees; tree++) {
      Block leaf = {0};
      for (long level = depth; level--;)
        leaf += leaf + *(const Block *)(answers + tree_splits[level*trees + tree]*BLOCK);
      for (long row = 0; row < count; row++) sums[row] += leaves[(tree << depth) + leaf[row]];
    }
    for (long row = 0; row < count; row++) steps[start + row] = sums[row];
  }
}
