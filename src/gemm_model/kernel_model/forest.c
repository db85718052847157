/* The leaves of all trees of each row, summed up; arrays as `Forest` has them, `features` of shape (features, rows). */
#include <stdint.h>
void walk(const float *features, const uint8_t *feature, const float *border, const uint16_t *tree_splits,
    const int16_t *leaves, int64_t *restrict steps, uint8_t *restrict answers, const long rows,
    const long splits, const long depth, const long trees) {
  uint8_t *restrict leaf = answers + splits*rows;
  for (long split = 0; split < splits; split++)
    for (long row = 0; row < rows; row++)
      answers[split*rows + row] = features[feature[split]*rows + row] > border[split];
  for (long tree = 0; tree < trees; tree++) {
    for (long row = 0; row < rows; row++) leaf[row] = 0;
    for (long level = 0; level < depth; level++) {
      const uint8_t *answer = answers + tree_splits[level*trees + tree]*rows;
      for (long row = 0; row < rows; row++) leaf[row] |= answer[row] << level;
    }
    for (long row = 0; row < rows; row++) steps[row] += leaves[(tree << depth) + leaf[row]];
  }
}
