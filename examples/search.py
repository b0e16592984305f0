import numpy as np
import shortlist as sl

rows = np.array([[1, 0, 0], [0, 1, 0], [0.6, 0.8, 0]], np.float32)  # three rows of three elements
query = np.array([1, 1, 0], np.float32)
index = sl.FlatIndex(dim=3, metric="cosine")  # on a GPU if there is one
index.add(rows)
scores, ids = index.search(query, k=2)
for row, score in zip(ids, scores):
    print(f"row {row}: {score:.4f}")
