// Everything: picks the k best of n, exactly, on the CPU and on NVIDIA GPUs.
#pragma once

#include "shortlist/device.hpp"
#include "shortlist/error.hpp"
#include "shortlist/flat_index.hpp"
#include "shortlist/index_file.hpp"
#include "shortlist/io.hpp"
#include "shortlist/ivf_pq_index.hpp"
#include "shortlist/ivf_pq_tuning.hpp"
#include "shortlist/sample.hpp"
#include "shortlist/top_k.hpp"
#include "shortlist/types.hpp"
#include "shortlist/version.hpp"
