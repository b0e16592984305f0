#!/usr/bin/env bash
# The program from outside: every command, its files, its exit codes, its one line of error.
#
# usage: program_test.sh PROGRAM
# Expected answers are computed here, in integer arithmetic, from small whole-numbered vectors.
set -uo pipefail
export LC_ALL=C

program=$(realpath "$1")
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
export SHORTLIST_REPOSITORY_DATA=${SHORTLIST_REPOSITORY_DATA:-$repository/data}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit

checks=0
failures=0

# check NAME COMMAND...: the command must succeed.
check() {
  local name=$1
  shift
  checks=$((checks + 1))
  if ! "$@"; then
    failures=$((failures + 1))
    echo "FAILED: $name: $*" >&2
    echo "  last command: ${last_command:-none}" >&2
    sed 's/^/  stderr: /' err >&2
  fi
}

# run CODE ARGUMENTS...: runs the program; its outputs are in the files out and err.
run() {
  local code=$1
  shift
  last_command="shortlist $*"
  "$program" "$@" >out 2>err
  local got=$?
  check "exit code is $got, expected $code" test $got -eq "$code"
}

# fails CODE PATTERN ARGUMENTS...: one line on stderr that matches, nothing on stdout.
fails() {
  local code=$1 pattern=$2
  shift 2
  run "$code" "$@"
  check 'stderr is one line' test "$(wc -l <err)" -eq 1
  check 'the line names the program' grep -q '^shortlist: ' err
  check "the line says what is wrong ($pattern)" grep -Eq -- "$pattern" err
  check 'stdout is empty' test ! -s out
}

only_files() { test "$(ls -A "$1" | tr '\n' ' ')" = "$2 "; }
same_text() { test "$1" = "$2"; }
differ() { ! cmp -s "$1" "$2"; }

# ---- binary files -----------------------------------------------------------------------------------------------

hex_bytes() { # little-endian bytes of $1 numbers of $2 bytes each
  local bytes=$1 value i text=
  shift
  for value; do
    for ((i = 0; i < bytes; ++i)); do
      printf -v text '%s\\x%02x' "$text" $(((value >> (8 * i)) & 255))
    done
  done
  printf '%b' "$text"
}

float_bits() { # the fp32 bits of a whole number
  local value=$1 sign=0 exponent=0
  ((value == 0)) && { bits=0; return; }
  ((value < 0)) && { sign=$((1 << 31)); value=$((-value)); }
  while ((value >> (exponent + 1))); do exponent=$((exponent + 1)); done
  bits=$((sign | ((127 + exponent) << 23) | ((value << (23 - exponent)) & 0x7FFFFF)))
}

floats() { # fp32 of whole numbers
  local value all=()
  for value; do
    float_bits "$value"
    all+=("$bits")
  done
  hex_bytes 4 "${all[@]}"
}

npy() { # header of an npy file: dtype, shape
  local header="{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
  while (((10 + ${#header} + 1) % 64)); do header+=' '; done
  printf '\x93NUMPY\x01\x00'
  hex_bytes 2 $((${#header} + 1))
  printf '%s\n' "$header"
}

rows=40
dim=5
row_values=()
for ((i = 0; i < rows; ++i)); do
  for ((j = 0; j < dim; ++j)); do row_values+=($(((i * 7 + j * 3 + i * j) % 11))); done
done
query_count=3
query_values=(1 0 2 3 1 4 4 0 1 2 0 1 0 0 5)

# expected METRIC K: "id score" lines of each query, best first, the smaller row first among equals
expected() {
  local metric=$1 k=$2 query i j q x sum
  for ((query = 0; query < query_count; ++query)); do
    for ((i = 0; i < rows; ++i)); do
      sum=0
      for ((j = 0; j < dim; ++j)); do
        q=${query_values[query * dim + j]}
        x=${row_values[i * dim + j]}
        if [[ $metric == l2 ]]; then sum=$((sum + (q - x) * (q - x))); else sum=$((sum + q * x)); fi
      done
      echo "$i $sum"
    done | if [[ $metric == l2 ]]; then sort -k2,2n -k1,1n; else sort -k2,2nr -k1,1n; fi | head -n "$k"
  done
}

# The lines "id score" of a table.
table_pairs() { tail -n +2 "$1" | while read -r _ _ id score; do echo "$id $score"; done; }

{ hex_bytes 4 $rows $dim && floats "${row_values[@]}"; } >base.fbin
{ hex_bytes 4 $rows $dim && hex_bytes 1 "${row_values[@]}"; } >base.u8bin
{ hex_bytes 4 $rows $dim && hex_bytes 1 "${row_values[@]}"; } >base.i8bin
{ npy '<f4' "$rows, $dim" && floats "${row_values[@]}"; } >base.npy
for ((i = 0; i < rows; ++i)); do
  hex_bytes 4 $dim && floats "${row_values[@]:i*dim:dim}"
done >base.fvecs
for ((i = 0; i < rows; ++i)); do
  hex_bytes 4 $dim && hex_bytes 1 "${row_values[@]:i*dim:dim}"
done >base.bvecs
{ hex_bytes 4 $query_count $dim && floats "${query_values[@]}"; } >queries.fbin
{ hex_bytes 4 $query_count $dim && hex_bytes 1 "${query_values[@]}"; } >queries.u8bin

# ---- help and version -------------------------------------------------------------------------------------------

run 0 --version
check 'version' grep -Eq '^shortlist [0-9]+\.[0-9]+\.[0-9]+$' out
run 0 --help
for command in build search train add tune suggest info top-k sample explain explain-top-k explain-sample bench devices demo; do
  check "--help lists $command" grep -q "^  $command " out
done
for command in build search train add tune suggest info top-k sample explain explain-top-k explain-sample bench devices demo; do
  "$program" $command --help >help 2>err
  check "$command --help has an example" grep -q "^  shortlist $command" help
done

# ---- build, info, search ----------------------------------------------------------------------------------------

expected ip 10 >expected_ip
expected l2 10 >expected_l2
for metric in ip l2; do
  for input in fbin fvecs npy u8bin i8bin bvecs; do
    run 0 build base.$input -o $input.$metric --metric $metric
    check 'build is silent on stderr' test ! -s err
    run 0 search $input.$metric queries.fbin --device cpu
    table_pairs out >got
    check "search of $input under $metric" cmp -s got expected_$metric
  done
  for type in f16 bf16; do
    run 0 build base.fbin -o $type.$metric --metric $metric --type $type
    run 0 search $type.$metric queries.u8bin --verify --corpus base.fbin
    check 'the verification is stated' grep -q '^verified: 3 queries x 10 places' err
    table_pairs out >got
    check "search of $type under $metric" cmp -s got expected_$metric
  done
done
for metric in ip l2; do
  run 0 build base.fbin -o plane.$metric --metric $metric --storage int8_and_full
  SHORTLIST_FORCE_FLAT_SEARCH=certified run 0 search plane.$metric queries.fbin --device cpu
  table_pairs out >got
  check "search of a plane under $metric" cmp -s got expected_$metric
done
run 0 info plane.ip
for line in '^storage +int8_and_full$' '^planes in memory +[0-9]'; do check "info says $line" grep -Eq "$line" out; done
fails 2 'storage is half; allowed is full, int8_and_full or int8_and_host' build base.fbin -o plane.half --storage half
fails 2 'options.storage is int8_and_full; allowed is full for rows of u8' \
  build base.u8bin -o plane.u8 --storage int8_and_full
check 'a refused build leaves no file' test ! -e plane.u8
for input in fbin u8bin; do
  run 0 build base.$input -o $input.cosine --metric cosine
  run 0 search $input.cosine queries.fbin -k $rows --verify --corpus base.$input --time
  check 'the time is stated' grep -q ' a query$' err
done

run 0 info fbin.l2
for line in "^rows +$rows\$" "^dim +$dim\$" '^metric +l2$' '^type +f32$' '^checksums +verified$'; do
  check "info says $line" grep -Eq "$line" out
done
run 0 info --json --header-only f16.ip
for line in "\"rows\": $rows," "\"dim\": $dim," '"metric": "inner_product"' '"type": "f16"' 'not verified'; do
  check "info --json says $line" grep -q "$line" out
done
for input in fbin fvecs npy u8bin i8bin bvecs; do
  run 0 info base.$input
  check "rows of base.$input" grep -Eq "^rows +$rows\$" out
  check "dim of base.$input" grep -Eq "^dim +$dim\$" out
done

# Two files make the index that one makes.
{ hex_bytes 4 13 $dim && floats "${row_values[@]:0:13*dim}"; } >first.fbin
{ hex_bytes 4 $((rows - 13)) $dim && floats "${row_values[@]:13*dim}"; } >second.fbin
run 0 build first.fbin second.fbin -o parts.ip --progress
check 'progress is shown' grep -q "parts.ip: $rows of $rows rows (100 %)" err
check 'two files make the same index' cmp -s parts.ip fbin.ip
run 0 search parts.ip queries.fbin --verify --corpus first.fbin --corpus second.fbin

# Labels: given ones are returned, and among equals the row added earlier still comes first.
labels=()
for ((i = 0; i < rows; ++i)); do labels+=($((5000 - 3 * i))); done
{ hex_bytes 4 $rows 1 && hex_bytes 4 "${labels[@]}"; } >labels.ibin
run 0 build base.fbin -o labelled --ids labels.ibin
run 0 search labelled queries.fbin --verify --corpus base.fbin --ids labels.ibin
table_pairs out >got
while read -r id score; do echo "$((5000 - 3 * id)) $score"; done <expected_ip >expected_labels
check 'labels' cmp -s got expected_labels

# JSON, to the letter; padding beyond k_found is left out.
{
  printf '{"metric":"inner_product","rows":40,"dim":5,"queries":3,"k":2,"k_found":2,"results":['
  expected ip 2 | {
    separator=
    for ((query = 0; query < query_count; ++query)); do
      read -r id0 score0
      read -r id1 score1
      printf '%s\n{"query":%d,"ids":[%d,%d],"scores":[%d,%d]}' "$separator" $query "$id0" "$id1" "$score0" "$score1"
      separator=,
    done
  }
  printf '\n]}\n'
} >expected.json
run 0 search fbin.ip queries.fbin -k 2 --format json
check 'JSON on stdout' cmp -s out expected.json
run 0 search fbin.ip queries.fbin -k 2 -o found.json
check 'JSON by the name of the output' cmp -s found.json expected.json
run 0 search fbin.ip queries.fbin -k 100 --format json
check 'k_found in JSON' grep -q "\"k\":100,\"k_found\":$rows," out
check 'no padding in JSON' test "$(grep -c -- '-1' out)" -eq 0

# ibin: uint32 queries, uint32 k, int32 ids, padded with -1.
run 0 search fbin.ip queries.fbin -o found.ibin
check 'ibin header' same_text "$(od -An -tu4 -N8 found.ibin | xargs)" "$query_count 10"
check 'ibin ids' same_text "$(od -An -v -td4 -j8 found.ibin | xargs)" "$(cut -d' ' -f1 expected_ip | xargs)"
run 0 search fbin.ip queries.fbin -k $((rows + 2)) --format ibin -o padded.ibin
check 'ibin padding' same_text "$(od -An -v -td4 -j$((8 + 4 * rows)) -N8 padded.ibin | xargs)" '-1 -1'
run 0 info found.ibin
check 'info of ibin' grep -Eq "^type +integer ids" out

# The device is the best there is; the answer is the same on each.
run 0 top-k base.npy -k 3 --indices best.npy
run 0 top-k base.npy -k 3 -d cpu --indices indices.npy
check 'the best device gives the same' cmp -s best.npy indices.npy

# Both plans of the CPU, forced, give the same bits.
for plan in scan tiles; do
  SHORTLIST_FORCE_FLAT_SEARCH=$plan run 0 search fbin.cosine queries.fbin -k $rows
  mv out $plan.out
done
check 'scan and tiles agree' cmp -s scan.out tiles.out

# ---- IVF-PQ: train, add, search, info, tune, suggest --------------------------------------------------------------

# Every list, and every row refined, gives what a flat index gives.
expected l2 5 >expected_l2
for input in fbin npy u8bin i8bin bvecs; do
  run 0 train base.$input -o $input.ivf --nlist 4 --pq-dim 5 --pq-bits 4 --keep device --progress
  check 'progress of training' grep -q '^codebook: 20 of 20 steps$' err
  run 0 add $input.ivf base.$input --batch 7 --progress
  check 'progress of adding' grep -q "$input.ivf: $rows of $rows rows (100 %)" err
  check 'rows added' grep -Eq "^$input.ivf: $rows rows added in .*, $rows in all$" out
  run 0 search $input.ivf queries.fbin -k 5 --nprobe 4 --refine 8
  table_pairs out >got
  check "search of $input.ivf" cmp -s got expected_l2
done
run 0 train base.fbin -o half.ivf --nlist 4 --pq-bits 4 --type f16 --metric ip --code sq8 --rotation random --keep host
run 0 add half.ivf base.fbin --ids labels.ibin
run 0 search half.ivf queries.fbin --nprobe 4 --refine $rows
table_pairs out >got
check 'labels, and rounded rows' cmp -s got expected_labels
run 0 search half.ivf queries.fbin -k 2 --nprobe 4 --refine $rows --format json
sed 's/,"k_found":2//' expected.json | while read -r line; do
  while [[ $line =~ \"ids\":\[([0-9]+),([0-9]+)\] ]]; do
    line=${line/"${BASH_REMATCH[0]}"/"\"ids\": [$((5000 - 3 * BASH_REMATCH[1])),$((5000 - 3 * BASH_REMATCH[2]))]"}
  done
  echo "${line//\"ids\": /\"ids\":}"
done >expected_ivf.json
check 'JSON of IVF-PQ' cmp -s out expected_ivf.json

run 0 info fbin.ivf
for line in '^kind +ivf_pq index$' "^rows +$rows\$" '^nlist +4$' '^pq_bits +4$' '^kept_rows +device$' '^segments +6$' \
  '^imbalance +[0-9]' '^checksums +verified$'; do
  check "info says $line" grep -Eq "$line" out
done
run 0 info --header-only --json fbin.ivf
check 'rows by the header alone' grep -q "\"rows\": $rows," out

# The truth: what a flat index finds.
run 0 build base.fbin -o truth.flat --metric l2
run 0 search truth.flat queries.fbin -o truth.ibin
run 0 search fbin.ivf queries.fbin --nprobe 4 --refine $rows --truth truth.ibin
check 'recall of everything' grep -q '^recall@10: 1.0000$' err
for truth in '' '--truth truth.ibin'; do
  # shellcheck disable=SC2086 # words
  run 0 tune fbin.ivf queries.fbin --recall 1 $truth --json
  check 'tune reaches the recall' grep -q '"reached": true' out
done
run 0 tune fbin.ivf queries.fbin --curve --refine 4
check 'a point for each of nprobe 1, 2 and 4' same_text "$(awk '{ print $2 }' out | xargs)" '1 2 4'
run 0 suggest --rows 1000000000 --dim 96 --memory 80
check 'suggest' grep -q '^nlist 65536, pq_dim 48, rows kept: host; ' out

fails 2 'vectors.rows is 40; allowed is 100 or more, the lists' train base.fbin -o x.ivf --nlist 100
fails 2 'options.pq_dim is 4; allowed is a number of pieces that are not empty' train base.fbin -o x.ivf --pq-dim 4
check 'a refused training leaves no file' test ! -e x.ivf
fails 2 'nprobe is 5; allowed is 1 to 4, the lists' search fbin.ivf queries.fbin --nprobe 5
fails 2 '--verify is given; allowed for a flat index alone' search fbin.ivf queries.fbin --verify --corpus base.fbin
fails 2 '--nprobe and --refine are given' search fbin.l2 queries.fbin --nprobe 2
fails 2 'INDEX is fbin.l2, a flat index' add fbin.l2 base.fbin
fails 2 'type is u8; allowed for base.fbin is its own f32' add u8bin.ivf base.fbin
fails 2 '--batch is 0' add fbin.ivf base.fbin --batch 0
fails 2 '--resume: the index holds 40 rows; allowed is up to 13' add fbin.ivf first.fbin --resume
fails 2 'need.memory_bytes is 0' suggest --rows 1000 --dim 96 --memory 0

# Killed at any time, an add leaves the batches that were committed, and --resume goes on behind them.
many=20000
{ hex_bytes 4 $many 16 && head -c $((many * 16)) "$program"; } >random.u8bin
{ hex_bytes 4 20 16 && head -c 5000 "$program" | tail -c 320; } >random_queries.u8bin
run 0 train random.u8bin -o trained.ivf --nlist 16
cp trained.ivf whole.ivf
run 0 add whole.ivf random.u8bin
run 0 search whole.ivf random_queries.u8bin --nprobe 3 -o whole.json
for delay in 0.05 0.1 0.3; do
  mkdir killed
  cp trained.ivf killed/it
  "$program" add killed/it random.u8bin --batch 100 >out 2>err &
  add=$!
  sleep $delay
  kill -KILL $add 2>err
  wait $add 2>err
  run 0 info --json killed/it
  left=$(sed -n 's/.*"rows": \([0-9]*\),/\1/p' out)
  check "whole batches ($left rows)" test $((left % 100)) -eq 0
  run 0 add killed/it random.u8bin --resume
  run 0 search killed/it random_queries.u8bin --nprobe 3 -o killed.json
  check 'as if nothing had happened' cmp -s killed.json whole.json
  rm -r killed
done

# ---- fp32 to fp16 and bf16, rounded to nearest even -------------------------------------------------------------

# stored INDEX BYTES: the stored elements, in hexadecimal
stored() {
  local header_bytes offset
  header_bytes=$(od -An -tu8 -N8 "$1" | xargs)
  offset=$(tail -c +9 "$1" | head -c "$header_bytes" | sed 's/.*"vectors":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
  od -An -v -tx2 -j$((8 + header_bytes + offset)) -N"$2" "$1" | xargs
}
# 0, -0, 1, tie down, tie up, above tie, below tie, largest f16, denormals: 2^-24, tie to 0, tie up, 2^-14 below; NaN, inf
values=(0x00000000 0x80000000 0x3F800000 0x3F801000 0x3F803000 0x3F801001 0x3F800FFF 0x477FE000
        0x33800000 0x33000000 0x33C00000 0x387FFFFF 0x7FC00001 0x7F800001 0xFF800000 0xC77FEFFF)
{ hex_bytes 4 ${#values[@]} 1 && hex_bytes 4 "${values[@]}"; } >halves.fbin
run 0 build halves.fbin -o halves.f16 --type f16
check 'f16 rounding' same_text "$(stored halves.f16 $((2 * ${#values[@]})))" \
  '0000 8000 3c00 3c00 3c02 3c01 3c00 7bff 0001 0000 0002 0400 7e00 7e00 fc00 fbff'
# 0, 1, tie down, tie up, above tie, a carry into the exponent, denormal tie, NaN whose bits all lie below, -inf
values=(0x00000000 0x3F800000 0x3F808000 0x3F818000 0x3F808001 0x3FFFFFFF 0x00018000 0x7F800001 0xFF800000)
{ hex_bytes 4 ${#values[@]} 1 && hex_bytes 4 "${values[@]}"; } >brains.fbin
run 0 build brains.fbin -o brains.bf16 --type bf16
check 'bf16 rounding' same_text "$(stored brains.bf16 $((2 * ${#values[@]})))" \
  '0000 3f80 3f80 3f82 3f81 4000 0002 7fc0 ff80'
{ hex_bytes 4 2 1 && hex_bytes 4 0x3F800000 0x477FF000; } >large.fbin
fails 2 'row 1 of large.fbin holds 65520' build large.fbin -o large.f16 --type f16
{ hex_bytes 4 1 1 && hex_bytes 4 0x7F7FFFFF; } >largest.fbin
fails 2 'row 0 of largest.fbin' build largest.fbin -o largest.bf16 --type bf16

# ---- top-k ------------------------------------------------------------------------------------------------------

npy_header_bytes=128

floats_of() { # whole numbers of 0 or more as floating-point numbers of $1 bytes, $2 the bias, $3 bits of mantissa
  local bytes=$1 bias=$2 mantissa=$3 value exponent fraction all=()
  shift 3
  for value; do
    exponent=0
    while ((value >> (exponent + 1))); do exponent=$((exponent + 1)); done
    fraction=$(((value << (mantissa - exponent)) & ((1 << mantissa) - 1)))
    if ((value == 0)); then all+=(0); else all+=($((((bias + exponent) << mantissa) | fraction))); fi
  done
  hex_bytes "$bytes" "${all[@]}"
}

# The lines "row column value" of all elements of the matrix.
for ((i = 0; i < rows; ++i)); do
  for ((j = 0; j < dim; ++j)); do echo "$i $j ${row_values[i * dim + j]}"; done
done >elements
by_column() { sort -k1,1n -k2,2n; }
first_of_each_row() { awk -v k="$1" 'count[$1]++ < k'; }
# expected_rows K [r]: the k smallest of each row, or with r the largest, best first, of equals the smaller column
expected_rows() { sort -k1,1n -k3,3n"${2:-}" -k2,2n elements | first_of_each_row "$1"; }

# check_npy FILE DTYPE SHAPE OD_TYPE LINES FIELD: the file holds the field of the lines, under the header of NumPy
check_npy() {
  npy "$2" "$3" >expected_header
  check "$1: header" cmp -s expected_header <(head -c $npy_header_bytes "$1")
  check "$1: elements" same_text "$(od -An -v "-t$4" -j$npy_header_bytes "$1" | xargs)" \
    "$(cut -d' ' -f"$6" "$5" | xargs)"
}

{ npy '<f8' "$rows, $dim" && floats_of 8 1023 52 "${row_values[@]}"; } >base_f8.npy
{ npy '<f2' "$rows, $dim" && floats_of 2 15 10 "${row_values[@]}"; } >base_f2.npy
{
  npy '<f4' "$rows, $dim" | sed 's/False,/True, /'
  for ((j = 0; j < dim; ++j)); do
    for ((i = 0; i < rows; ++i)); do echo "${row_values[i * dim + j]}"; done
  done | { mapfile -t columns && floats "${columns[@]}"; }
} >fortran.npy

for k in 1 3 $dim; do
  expected_rows $k r >best_largest
  expected_rows $k >best_smallest
  for order in largest smallest; do
    by_column <best_$order >columns_$order
    smallest=()
    [[ $order == smallest ]] && smallest=(--smallest)
    for input in base fortran; do
      run 0 top-k $input.npy -k $k "${smallest[@]}" --sorted -d cpu --values values.npy --indices indices.npy
      check 'no table beside files' test ! -s out
      check_npy values.npy '<f4' "$rows, $k" f4 best_$order 3
      check_npy indices.npy '<i8' "$rows, $k" d8 best_$order 2
      run 0 top-k $input.npy -k $k "${smallest[@]}" -d cpu --indices indices.npy --index-type i32
      check_npy indices.npy '<i4' "$rows, $k" d4 columns_$order 2
    done
    run 0 top-k base.npy -k $k "${smallest[@]}" -d cpu --mask mask.npy
    awk 'NR == FNR { best[$1, $2] = 1; next } { print $1, $2, (($1, $2) in best) ? 1 : 0 }' best_$order elements >marks
    check_npy mask.npy '|u1' "$rows, $dim" u1 marks 3
  done
  run 0 top-k base_f8.npy -k $k -d cpu --values values.npy --indices indices.npy
  check_npy values.npy '<f8' "$rows, $k" f8 columns_largest 3
  check_npy indices.npy '<i8' "$rows, $k" d8 columns_largest 2
  run 0 top-k base_f2.npy -k $k -d cpu --values values.npy --indices indices.npy
  check_npy indices.npy '<i8' "$rows, $k" d8 columns_largest 2
  mapfile -t chosen < <(cut -d' ' -f3 columns_largest)
  check 'fp16 values keep their bits' cmp -s <(tail -c +$((npy_header_bytes + 1)) values.npy) \
    <(floats_of 2 15 10 "${chosen[@]}")
  run 0 top-k base.npy -k $k -d cpu --eps 0 --indices indices.npy
  check_npy indices.npy '<i8' "$rows, $k" d8 columns_largest 2
done

# One step of the bisection, in doubled numbers: the first k columns that reach the middle, if there are so many.
awk -v k=2 'NR == FNR {
    if (!($1 in low) || $3 < low[$1]) low[$1] = $3
    if (!($1 in high) || $3 > high[$1]) high[$1] = $3
    value[$1, $2] = $3
    next
  }
  FNR == 1 {
    for (at in value) {
      split(at, place, SUBSEP)
      row = place[1]
      if (2 * value[at] >= low[row] + high[row]) ++reached[row]
    }
  }
  { end = reached[$1] < k ? 2 * low[$1] : low[$1] + high[$1] }
  2 * $3 >= end' elements elements | first_of_each_row 2 >one_step
run 0 top-k base.npy -k 2 -d cpu --max-iter 1 --values values.npy --indices indices.npy
check_npy values.npy '<f4' "$rows, 2" f4 one_step 3
check_npy indices.npy '<i8' "$rows, 2" d8 one_step 2
expected_rows 2 r | by_column >exact
check 'one step is not the exact set here' differ one_step exact

# The table: the first rows and places, and what is left out is said.
run 0 top-k base.npy -k 3 --sorted -d cpu --time
check 'the head of the table' same_text "$(head -n 1 out | xargs)" 'row column value'
check 'the table' same_text "$(sed -n '2,31p' out | xargs)" "$(expected_rows 3 r | head -n 30 | xargs)"
check 'rows left out' grep -q "^shown are 10 of $rows rows and 3 of 3 columns each; " out
check 'the table ends' test "$(wc -l <out)" -eq 32
check 'the times' grep -Eq '^cpu: 800 bytes read in .*; 3 of each of 40 rows x 5 in .*, without copies$' err
for type in f8 f2; do
  run 0 top-k base_$type.npy -k 3 --sorted -d cpu --index-type i32
  check "the table of $type" same_text "$(sed -n '2,31p' out | xargs)" "$(expected_rows 3 r | head -n 30 | xargs)"
done
{ npy '<f4' '4,' && floats 2 7 1 7; } >one_axis.npy
run 0 top-k one_axis.npy -k 3 --sorted -d cpu
check 'one axis is one row' same_text "$(tail -n +2 out | xargs)" '0 1 7 0 3 7 0 0 2'
{ npy '<f4' '0, 5'; } >no_rows.npy
run 0 top-k no_rows.npy -k 2 -d cpu --values values.npy
npy '<f4' '0, 2' >expected_header
check 'no rows' cmp -s values.npy expected_header

# The device is the best there is; the answer is the same on each.
run 0 top-k base.npy -k 3 --indices best.npy
run 0 top-k base.npy -k 3 -d cpu --indices indices.npy
check 'the best device gives the same' cmp -s best.npy indices.npy

# Both plans of the CPU, forced, give the same bits.
for plan in whole_rows split_rows; do
  SHORTLIST_FORCE_TOP_K=$plan run 0 top-k base.npy -k 3 -d cpu --indices $plan.npy
done
check 'whole_rows and split_rows agree' cmp -s whole_rows.npy split_rows.npy

rm -f x.npy
fails 2 'k is required' top-k base.npy
fails 2 'k is 0; allowed is 1 to cols, which is 5' top-k base.npy -k 0 -d cpu
fails 2 'k is -7' top-k base.npy -k -7 -d cpu --values x.npy
fails 2 'k is 6' top-k base.npy -k 6 -d cpu --values x.npy
fails 2 'eps is -1' top-k base.npy -k 1 -d cpu --eps -1
fails 2 'eps is nan' top-k base.npy -k 1 -d cpu --eps nan
fails 2 'max_iter is 0; allowed is 1 to 64' top-k base.npy -k 1 -d cpu --max-iter 0
fails 2 'excludes' top-k base.npy -k 1 --eps 0.1 --max-iter 3
fails 2 'eps is given for f64' top-k base_f8.npy -k 1 -d cpu --eps 0.1
fails 2 'excludes' top-k base.npy -k 1 --mask x.npy --values y.npy
fails 2 'excludes' top-k base.npy -k 1 --mask x.npy --indices y.npy
fails 2 '--indices is x.npy; allowed is another file' top-k base.npy -k 1 --values x.npy --indices x.npy
fails 2 '--values is x.fbin; allowed is a name that ends in .npy' top-k base.npy -k 1 --values x.fbin
fails 2 'i16' top-k base.npy -k 1 --index-type i16
fails 2 'abacus' top-k base.npy -k 1 --device abacus
fails 1 'missing.npy' top-k missing.npy -k 1
fails 1 'base.fbin.*NUMPY' top-k base.fbin -k 1
fails 1 'no/such/folder' top-k base.npy -k 1 -d cpu --values no/such/folder/x.npy
head -c 900 base.npy >short.npy
fails 1 'short.npy.*must have 928 bytes; it has 900' top-k short.npy -k 1
{ npy '>f4' "$rows, $dim" && floats "${row_values[@]}"; } >big_endian.npy
fails 1 'big_endian.npy.*big-endian' top-k big_endian.npy -k 1
{ npy '|u1' "$rows, $dim" && hex_bytes 1 "${row_values[@]}"; } >bytes.npy
fails 1 "bytes.npy.*descr is '.u1'; allowed is <f4, <f2 and <f8" top-k bytes.npy -k 1
check 'nothing was written' test ! -e x.npy

# ---- sample -----------------------------------------------------------------------------------------------------

# Whole-numbered logits: the best token is known, and so is what is drawn of equal ones.

# draw SEED OFFSET COUNT: which of COUNT tokens of equal weight is drawn, by Philox4x32-10
draw() {
  local -i mask=0xFFFFFFFF i product0 product1
  local -i key0=$(($1 & mask)) key1=$((($1 >> 32) & mask)) x0=$(($2 & mask)) x1=$((($2 >> 32) & mask)) x2=0 x3=0
  for ((i = 0; i < 10; ++i)); do
    product0=$((0xD2511F53 * x0))
    product1=$((0xCD9E8D57 * x2))
    x0=$((((product1 >> 32) & mask) ^ x1 ^ key0))
    x1=$((product1 & mask))
    x2=$((((product0 >> 32) & mask) ^ x3 ^ key1))
    x3=$((product0 & mask))
    key0=$(((key0 + 0x9E3779B9) & mask))
    key1=$(((key1 + 0xBB67AE85) & mask))
  done
  echo $((((x0 >> 8) * $3) >> 24))
}

repeat() { for ((i = 0; i < $1; ++i)); do echo "$2"; done; }
draws() { # SEED OFFSET COUNT: of all rows
  for ((i = 0; i < rows; ++i)); do draw "$1" $(($2 + i)) "$3"; done
}
# greedy AWK: the best token of each row, where the expression is added to `value`, which is at `row` and `column`
greedy() {
  awk "{ row = \$1; column = \$2; value = \$3; value += $1; print row, column, value }" elements |
    sort -k1,1n -k3,3gr -k2,2n | first_of_each_row 1 | cut -d' ' -f2
}
# sampled LINES ARGUMENTS...: the tokens are those of the file, a line a row
sampled() {
  local lines=$1
  shift
  run 0 sample "$@" -d cpu --tokens tokens.npy
  check 'no table beside files' test ! -s out
  check_npy tokens.npy '<i4' "$(wc -l <"$lines"), 1" d4 "$lines" 1
}
# The fields of the table's lines: token, log-probability or status, kept.
table_field() { tail -n +2 out | awk -v field="$1" '{ print $field }' | xargs; }

equal_count=8
{ npy '<f4' "$rows, $equal_count" && head -c $((4 * rows * equal_count)) /dev/zero; } >equal.npy
for key in '0 0' '7 0' '7 5' '12345678901234 98765432109876'; do
  read -r seed offset <<<"$key"
  draws "$seed" "$offset" $equal_count >drawn
  sampled drawn equal.npy --seed "$seed" --offset "$offset"
  sampled drawn equal.npy --seed "$seed" --offset "$offset" --top-p 1 --min-p 1 --temperature 3
  draws "$seed" "$offset" 3 >drawn
  sampled drawn equal.npy --seed "$seed" --offset "$offset" -k 3
done
draws 0 0 $equal_count >drawn
check 'not all draws are equal' test "$(sort -u drawn | wc -l)" -gt 1

repeat $rows 0 >first
sampled first equal.npy --temperature 0
sampled first equal.npy -k 1 --seed 9
greedy 0 >best
for input in base fortran base_f2; do sampled best $input.npy --temperature 0 --seed 9; done

# The log-probability of one of eight: -(3 * fp32(ln 2)), rounded once.
run 0 sample equal.npy -d cpu --logprobs logprobs.npy
repeat $rows c0051592 >eighth
check_npy logprobs.npy '<f4' "$rows, 1" x4 eighth 1
sampled first equal.npy --temperature 0 --logprobs both.npy
check 'both files at once' cmp -s both.npy logprobs.npy

# Penalties, bias and mask: tokens of both files, -1 and tokens beyond the vocabulary left alone.
mapfile -t best_tokens <best
both=()
for ((i = 0; i < rows; ++i)); do both+=($(((i * 3) % dim)) $((i % 2 ? -1 : 99))); done
{ npy '<i4' "$rows, 1" && hex_bytes 4 "${best_tokens[@]}"; } >best_tokens.npy
{ npy '<i8' "$rows, 2" && hex_bytes 8 "${both[@]}"; } >history.npy
{ npy '<i4' '3,' && hex_bytes 4 1 1 -1; } >one_row.npy
greedy '(column == row * 3 % 5) * -4' >expected_tokens
sampled expected_tokens base.npy --temperature 0 --generated history.npy --presence 4
sampled expected_tokens base.npy --temperature 0 --generated history.npy --frequency 4 --prompt best_tokens.npy
check 'penalties change what is best' differ expected_tokens best
sampled best base.npy --temperature 0 --generated history.npy --presence 0
greedy '(column == 1) * -6' >expected_tokens
sampled expected_tokens base.npy --temperature 0 --generated one_row.npy --frequency 3
sampled expected_tokens base.npy --temperature 0 --generated one_row.npy --frequency 2.5 --presence 1
greedy '(column == row * 3 % 5) * -0.875 * value' >expected_tokens
for file in prompt generated; do
  sampled expected_tokens base.npy --temperature 0 --repetition 8 --$file history.npy
done

greedy '(column == 2) * 4' >expected_tokens
{ npy '<f4' '1, 5' && floats 0 0 4 0 0; } >bias.npy
sampled expected_tokens base.npy --temperature 0 --bias bias.npy
check 'the bias changes what is best' differ expected_tokens best
for ((i = 0; i < rows; ++i)); do
  for ((j = 0; j < dim; ++j)); do echo $((j == i % dim ? 100 : 0)); done
done >marks
{ mapfile -t marked <marks && npy '<f4' "$rows, $dim" && floats "${marked[@]}"; } >biases.npy
{ npy '|u1' "$rows, $dim" && hex_bytes 1 "${marked[@]}"; } >marked.npy
for ((i = 0; i < rows; ++i)); do echo $((i % dim)); done >expected_tokens
sampled expected_tokens base.npy --bias biases.npy
sampled expected_tokens base.npy --allowed marked.npy
{ npy '|u1' "1, $dim" && hex_bytes 1 0 1 0 1 1; } >mask.npy
greedy '(column == 0 || column == 2) * -100' >expected_tokens
sampled expected_tokens base.npy --temperature 0 --allowed mask.npy

# Weights 1 and 1/e, and a hundred of e^-5: 12 of them hold 0.7 of all, but one holds 0.7 of the first two.
{ npy '<f4' '102,' && floats 0 -1 && for ((i = 0; i < 100; ++i)); do floats -5; done; } >tail.npy
kept() { # COUNT ARGUMENTS...
  local count=$1
  shift
  run 0 sample tail.npy -d cpu "$@"
  check "$count tokens are kept" same_text "$(table_field 4)" "$count"
}
kept 102
kept 40 -k 40
kept 12 --top-p 0.7
kept 2 --min-p 0.1
kept 2 --top-p 0.7 --min-p 0.1
kept 1 --top-p 0.7 --min-p 0.1 --min-p-first
kept 102 --temperature 3 --min-p 0.1
kept 1 --temperature 0 -k 40

# The table: a line a row; a row without a token says why.
{ npy '<f4' '3, 2' && hex_bytes 4 0x3F800000 0x7FC00000 0xFF800000 0xFF800000 0x3F800000 0xFF800000; } >troubled.npy
run 0 sample troubled.npy -d cpu --top 2 --time
check 'the head of the table' same_text "$(head -n 1 out | xargs)" 'row token log-probability kept best'
check 'the table' same_text "$(tail -n +2 out | xargs)" '0 -1 nan_logit 0 1 -1 nothing_allowed 0 2 0 0 1 0 0'
check 'the times' grep -Eq '^cpu: 24 bytes read in .*; a token of each of 3 rows x 2 in .*, without copies$' err
run 0 sample equal.npy -d cpu --top 3 --seed 4
check 'a line a row' test "$(wc -l <out)" -eq $((rows + 1))
check 'tokens of the table' same_text "$(table_field 2)" "$(draws 4 0 $equal_count | xargs)"
check 'log-probabilities of the table' same_text "$(table_field 3)" "$(repeat $rows -2.0794415 | xargs)"
check 'the best of the table' grep -q ' 8   0 -2.0794415, 1 -2.0794415, 2 -2.0794415$' out
run 0 sample tail.npy -d cpu --top 104 --temperature 0
check 'as many best tokens as there are' test "$(grep -o , out | wc -l)" -eq 101
{ npy '<f4' '60, 1' && head -c 240 /dev/zero; } >many.npy
run 0 sample many.npy -d cpu
check 'rows left out' grep -q '^shown are 50 of 60 rows; ' out
{ npy '<f4' '0, 5'; } >no_rows.npy
run 0 sample no_rows.npy -d cpu --tokens tokens.npy
npy '<i4' '0, 1' >expected_header
check 'no rows' cmp -s tokens.npy expected_header

# The device is the best there is; the answer is the same on each, of real logits too.
real=("$SHORTLIST_REPOSITORY_DATA/logits/logits.npy" --temperature 0.8 -k 50 --top-p 0.95 --seed 7 --generated one_row.npy
      --presence 1)
run 0 sample "${real[@]}" --tokens best.npy --logprobs best_logprobs.npy
run 0 sample "${real[@]}" --tokens tokens.npy --logprobs logprobs.npy -d cpu
check 'the best device draws the same' cmp -s best.npy tokens.npy
check 'and as likely' cmp -s best_logprobs.npy logprobs.npy
run 0 sample "${real[@]}" --tokens best.npy -d cpu --offset 1
check 'another offset is another draw' differ best.npy tokens.npy

rm -f x.npy
fails 2 'input is required' sample
fails 2 'temperature is -1; allowed is 0 or more' sample base.npy -d cpu --temperature -1
fails 2 'temperature is nan' sample base.npy -d cpu --temperature nan
fails 2 'top_p is nan' sample base.npy -d cpu --top-p nan
fails 2 'min_p is 1.5; allowed is 0 to 1' sample base.npy -d cpu --min-p 1.5
fails 2 'top_n is -1; allowed is 0 to 512' sample base.npy -d cpu --top -1
fails 2 'top_n is 513' sample base.npy -d cpu --top 513
fails 2 'seed.* is -1; allowed is 0 to 2.64 - 1' sample base.npy --seed -1
fails 2 'offset.* is -1; allowed is 0 to 2.64 - 1' sample base.npy --offset -1
fails 2 'logits.type is f64' sample base_f8.npy -d cpu
fails 2 'repetition_penalty is 0; allowed is above 0' sample base.npy -d cpu --repetition 0 --prompt history.npy
fails 2 '--repetition is 2; allowed without --prompt and --generated is 1' sample base.npy --repetition 2
fails 2 'presence requires --generated' sample base.npy --presence 1 --prompt history.npy
fails 2 'frequency requires --generated' sample base.npy --frequency 1
fails 2 'presence_penalty is inf' sample base.npy -d cpu --presence inf --generated history.npy
fails 2 '--prompt has 40 rows; allowed is 1, or 1 as the logits' sample tail.npy -d cpu --prompt history.npy
{ npy '<i8' '1, 2' && hex_bytes 8 1 $((1 << 31)); } >large_ids.npy
fails 2 '--generated has the token 2147483648' sample base.npy -d cpu --generated large_ids.npy
fails 2 '--bias is f16; allowed is f32' sample base.npy -d cpu --bias base_f2.npy
fails 2 '--bias is in Fortran order' sample base.npy -d cpu --bias fortran.npy
fails 2 '--bias has 3 rows; allowed is 1, or 40 as the logits' sample base.npy -d cpu --bias troubled.npy
fails 2 '--bias has 102 columns; allowed is 5 as the logits' sample base.npy -d cpu --bias tail.npy
fails 2 '--allowed is f32; allowed is u8' sample base.npy -d cpu --allowed base.npy
fails 2 '--allowed has 5 columns; allowed is 102 as the logits' sample tail.npy -d cpu --allowed mask.npy
fails 2 '--allowed has 40 rows' sample troubled.npy -d cpu --allowed marked.npy
fails 2 'excludes' sample base.npy --top 3 --tokens x.npy
fails 2 'excludes' sample base.npy --top 3 --logprobs x.npy
fails 2 '--logprobs is x.npy; allowed is another file' sample base.npy --tokens x.npy --logprobs x.npy
fails 2 '--tokens is x.fbin; allowed is a name that ends in .npy' sample base.npy --tokens x.fbin
fails 2 '--logprobs is x; allowed' sample base.npy --logprobs x
fails 2 'abacus' sample base.npy --device abacus
fails 1 'missing.npy' sample missing.npy
fails 1 'missing.npy' sample base.npy -d cpu --prompt missing.npy
fails 1 'missing.npy' sample base.npy -d cpu --bias missing.npy
fails 1 'missing.npy' sample base.npy -d cpu --allowed missing.npy
fails 1 'base.npy.*f32' sample base.npy -d cpu --generated base.npy
fails 1 'no/such/folder' sample base.npy -d cpu --tokens no/such/folder/x.npy
check 'nothing was written' test ! -e x.npy

# ---- explain, devices, bench ------------------------------------------------------------------------------------

run 0 explain --rows 1000000 --dim 384 --queries 16 -k 100 --device cpu
check 'explain says something' test -s out
SHORTLIST_FORCE_FLAT_SEARCH=nonsense fails 2 'nonsense.*scan.*tiles' explain --rows 1000 --dim 8 --device cpu
SHORTLIST_FORCE_FLAT_SEARCH=tiles run 0 explain --rows 1000 --dim 8 --device cpu
check 'explain shows the forced plan' grep -q tiles out
run 0 explain --rows 1000000 --dim 384 -k 100 --storage int8_and_full --device cpu
check 'explain knows the plane' grep -Eq 'certified|of the plane' out
fails 2 'int8_and_full; allowed is full for rows of u8' explain --rows 10 --dim 8 -t u8 -s int8_and_full --device cpu
fails 2 'storage is int8; allowed is full' explain --rows 10 --dim 8 --storage int8 --device cpu
fails 2 'rows' explain --rows -1 --dim 8 --device cpu
fails 2 'dim' explain --rows 10 --dim 0 --device cpu

run 0 explain-top-k --rows 1048576 --cols 256 -k 32 --device cpu
check 'the shape' grep -q 'k 32 of each of 1048576 rows x 256 f32$' out
run 0 explain-top-k --rows 1048576 --cols 256 -k 32 --type f16 --early-stop --device cpu
check 'the shape of an early stop' grep -q 'rows x 256 f16, stopped early$' out
SHORTLIST_FORCE_TOP_K=nonsense fails 2 'nonsense.*whole_rows.*split_rows' explain-top-k --rows 9 --cols 8 -k 1 -d cpu
SHORTLIST_FORCE_TOP_K=split_rows run 0 explain-top-k --rows 1000 --cols 8 -k 1 --device cpu
check 'explain-top-k shows the forced plan' grep -q 'split_rows' out
run 0 explain-top-k --rows 10 --cols 100 -k 4 --sorted --index-type i32 --device cpu
check 'what is written in order' grep -q 'x 100 f32, sorted$' out
check 'and its bytes' grep -q 'writes 0.00032 MB of values and 32-bit indices$' out
run 0 explain-top-k --rows 10 --cols 100 -k 4 --mask --device cpu
check 'the bytes of a mask' grep -q 'writes 0.001 MB of a mask$' out
run 0 explain-top-k --rows 10 --cols 100 -k 4 --col-stride 3 --device cpu
check 'columns that lie apart' grep -q 'x 100 f32, columns 3 apart$' out
fails 2 'col_stride is 0' explain-top-k --rows 10 --cols 100 -k 4 --col-stride 0 --device cpu
fails 2 'i16' explain-top-k --rows 10 --cols 8 -k 1 --index-type i16
fails 2 'rows is -1' explain-top-k --rows -1 --cols 8 -k 1 --device cpu
fails 2 'cols is 0' explain-top-k --rows 10 --cols 0 -k 1 --device cpu
fails 2 'k is 9' explain-top-k --rows 10 --cols 8 -k 9 --device cpu
fails 2 'i8.*f64' explain-top-k --rows 10 --cols 8 -k 1 --type i8 --device cpu
fails 2 'cols is required' explain-top-k --rows 10 -k 1

run 0 explain-sample --rows 64 --vocab 128256 --type bf16 --device cpu
check 'the shape of a step' grep -q 'a token of each of 64 rows of 128256 bf16 logits$' out
check 'the bytes of a step' grep -q '^reads: .* 16.4168 MB$' out
SHORTLIST_FORCE_SAMPLE=nonsense fails 2 'nonsense.*cpu_rows' explain-sample --rows 9 --vocab 8 -d cpu
SHORTLIST_FORCE_SAMPLE=cpu_rows run 0 explain-sample --rows 9 --vocab 8 -k 4 -d cpu
check 'explain-sample shows the forced plan' grep -q 'cpu_rows' out
fails 2 'rows is 0' explain-sample --rows 0 --vocab 8 -d cpu
fails 2 'vocab is 0' explain-sample --rows 1 --vocab 0 -d cpu
fails 2 'vocab is 8388608; allowed is 1 to 8388607' explain-sample --rows 1 --vocab 8388608 -d cpu
fails 2 'type is f64' explain-sample --rows 1 --vocab 8 -t f64 -d cpu
fails 2 'i8.*f64' explain-sample --rows 1 --vocab 8 -t i8 -d cpu
fails 2 'vocab is required' explain-sample --rows 1

run 0 devices
check 'the CPU comes first' grep -q '^cpu ' <(head -1 out)
have_gpu=$(grep -c '^cuda' out)

for type in f32 f16 bf16 i8 u8; do
  for metric in ip cosine l2; do
    run 0 bench --rows 1000 --dim 33 --queries 3 -k 7 --type $type --metric $metric --device cpu --repeat 2 --json
    check 'the record names the work' grep -q "\"work\": \"flat/q3/1000x33/$type/$metric/k7/host\"" out
    check 'the record is verified' grep -q '"verified": true' out
    check 'every query was verified' grep -q '"verified_queries": 3' out
  done
done
run 0 bench --rows 500 --dim 8 --repeat 1
run 0 bench --rows 5000 --dim 40 -k 5 --storage int8_and_full --repeat 1 --device cpu
check 'bench counts survivors' grep -Eq '^survivors +[0-9]+\.[0-9] rows a query' out
check 'bench names the work' grep -q '/k5/host/certified on cpu' out
check 'bench for people' grep -q '^verified   1 of 1 query' out
fails 2 '--rows is 0' bench --rows 0
fails 2 '--dim is 65537' bench --dim 65537
fails 2 '--k is -1' bench -k -1

# ---- demo -------------------------------------------------------------------------------------------------------

run 0 demo
check 'twelve questions' test "$(grep -Ec '^ ?[0-9]+\. ' out)" -eq 12
check 'three passages each' test "$(grep -Ec '^    0\.[0-9]{3}  .*\[(helpcenter|wikipedia)\]$' out)" -eq 36
check 'the first answer' grep -q 'Ending your plan' out
check 'the time' grep -Eq '^cpu     [0-9.]+ (us|ms) a query' out
check 'the check' grep -q "^checked 12 questions, .* every bit of every score equals the reference's$" out
check 'lines are short' test "$(LC_ALL=C.UTF-8 awk 'length > 100 && !/^(cpu|cuda|checked)/' out | wc -l)" -eq 0
check 'no escapes in a file' test "$(grep -c $'\x1b' out)" -eq 0
if ((have_gpu == 0)); then check 'no GPU is said' grep -q '^cuda    not used: ' out; fi
fails 1 'base.fbin.*nowhere.*--data' demo --data nowhere
mkdir damaged
cp "$SHORTLIST_REPOSITORY_DATA"/help_wiki/{base.fbin,queries.fbin,queries.txt,passages.tsv} damaged
chmod u+w damaged/*
sed -i '2000d' damaged/passages.tsv
fails 1 'passages.tsv: line 2000' demo --data damaged
head -n 5 damaged/queries.txt >damaged/fewer && mv damaged/fewer damaged/queries.txt
cp "$SHORTLIST_REPOSITORY_DATA"/help_wiki/passages.tsv damaged/whole && mv -f damaged/whole damaged/passages.tsv
fails 1 '5 questions' demo --data damaged

# ---- wrong use: exit code 2 -------------------------------------------------------------------------------------

fails 2 'subcommand'
fails 2 'nonsense' nonsense
fails 2 'inputs|INPUT' build
fails 2 'output' build base.fbin
fails 2 'queries' search fbin.ip
fails 2 'surplus' search fbin.ip queries.fbin surplus
fails 2 'k is 0' search fbin.ip queries.fbin -k 0
fails 2 'k is -3' search fbin.ip queries.fbin -k -3
fails 2 'ten' search fbin.ip queries.fbin -k ten
fails 2 'abacus' search fbin.ip queries.fbin --device abacus
fails 2 'xml' search fbin.ip queries.fbin --format xml
fails 2 'output' search fbin.ip queries.fbin --format ibin
fails 2 'corpus' search fbin.ip queries.fbin --verify
fails 2 'holds 13 rows' search fbin.ip queries.fbin --verify --corpus first.fbin
fails 2 'hamming' build base.fbin -o x --metric hamming
fails 2 'f64' build base.fbin -o x --type f64
fails 2 'type is u8' build base.fbin -o x --type u8
fails 2 'type is f16' build base.u8bin -o x --type f16
fails 2 'output is x.fbin' build base.fbin -o x.fbin
fails 2 'base.u8bin is u8' build base.fbin base.u8bin -o x
fails 2 'halves.fbin is f32 of dim 1' build base.fbin halves.fbin -o x
{ hex_bytes 4 39 1 && hex_bytes 4 "${labels[@]:0:39}"; } >few.ibin
fails 2 'few.ibin is 39 x 1' build base.fbin -o x --ids few.ibin
{ hex_bytes 4 $rows 1 && hex_bytes 4 7 7 "${labels[@]:2}"; } >twice.ibin
fails 2 '7' build base.fbin -o x --ids twice.ibin
fails 2 'dim' search fbin.ip halves.fbin
fails 2 'base.txt' build base.txt -o x
check 'nothing was written' test ! -e x

# ---- failures: exit code 1 --------------------------------------------------------------------------------------

fails 1 'missing.fbin' build missing.fbin -o x
fails 1 'missing.index' search missing.index queries.fbin
fails 1 'missing.fbin' search fbin.ip missing.fbin
fails 1 'missing.index' info missing.index
fails 1 'missing.fbin' info missing.fbin
fails 1 'no/such/folder' build base.fbin -o no/such/folder/index
fails 1 'no/such/folder' search fbin.ip queries.fbin -o no/such/folder/found.json
fails 1 'no/such/folder' search fbin.ip queries.fbin -o no/such/folder/found.ibin
head -c 100 base.fbin >short.fbin
fails 1 'short.fbin' build short.fbin -o x
if ((have_gpu == 0)); then
  fails 1 'cuda|CUDA|GPU' search fbin.ip queries.fbin --device cuda
  fails 1 'cuda|CUDA|GPU' bench --device cuda:1
  fails 1 'cuda|CUDA|GPU' top-k base.npy -k 1 --device cuda
  fails 1 'cuda|CUDA|GPU' sample base.npy --device cuda
else
  fails 2 '99' search fbin.ip queries.fbin --device cuda:99
  fails 2 '99' top-k base.npy -k 1 --device cuda:99
  fails 2 '99' sample base.npy --device cuda:99
  SHORTLIST_FORCE_TOP_K=whole_rows fails 2 'warp_rows.*radix_rows' top-k base.npy -k 1 --device cuda
  for plan in '' radix_rows; do
    SHORTLIST_FORCE_TOP_K=$plan run 0 top-k base.npy -k 3 --device cuda --values values.npy --indices cuda.npy
    check "the columns of the GPU, plan '$plan'" cmp -s cuda.npy whole_rows.npy
  done
fi

# Indexes that are no indexes, and one damaged bit.
: >empty.index
head -c 200 fbin.ip >short.index
cp base.fbin text.index
cp fbin.ip damaged.index
last=$(($(wc -c <fbin.ip) - 1))
printf '\xff' | dd of=damaged.index bs=1 seek=$last conv=notrunc status=none
for index in empty short text damaged; do
  fails 1 "$index.index" search $index.index queries.fbin
  fails 1 "$index.index" info $index.index
done

# A full disk: the file size is limited instead. What was there stays, and nothing else.
mkdir full
{ hex_bytes 4 4000 5 && head -c 20000 /dev/zero; } >zeros.u8bin
run 0 build zeros.u8bin -o zeros.ip
cp zeros.ip full/zeros.ip
{ npy '<f4' '4000, 1' && head -c 16000 /dev/zero; } >many_rows.npy
limited() { (ulimit -f 1 && exec "$program" "$@"); }
for arguments in 'build zeros.u8bin -o full/zeros.ip' 'search fbin.ip queries.fbin -k 500 -o full/new.ibin' \
  'search zeros.ip queries.fbin -k 500 -o full/new.json' 'top-k base.npy -k 5 -d cpu --indices full/new.npy' \
  'sample many_rows.npy -d cpu --tokens full/new.npy'; do
  last_command="shortlist $arguments, at most 1 KiB a file"
  # shellcheck disable=SC2086 # the arguments are words
  limited $arguments >out 2>err
  check 'a full disk is a failure' test $? -eq 1
  check 'one line' test "$(grep -c '^shortlist: .*full/' err)" -eq 1
  check 'nothing is left behind' only_files full zeros.ip
  check 'the old file stays' cmp -s zeros.ip full/zeros.ip
done
"$program" info fbin.ip >/dev/full 2>err
check 'a full standard output is a failure' test $? -eq 1

# An interrupt leaves a whole file or none.
{ hex_bytes 4 200000 200 && head -c 40000000 /dev/zero; } >many.u8bin
for delay in 0.01 0.03 0.06 0.1 0.2; do
  mkdir interrupted
  "$program" build many.u8bin -o interrupted/index >out 2>err &
  build=$!
  sleep $delay
  kill -TERM $build 2>err
  wait $build 2>err
  if [[ -n $(ls -A interrupted) ]]; then
    check 'only the index' only_files interrupted index
    run 0 info interrupted/index
  fi
  rm -r interrupted
done

echo "$checks checks, $failures failed"
test $failures -eq 0
