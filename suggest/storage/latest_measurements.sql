WITH RECURSIVE
measured (trial, place) AS (
  SELECT min(trial), 1 FROM measurements
  WHERE namespace = :namespace AND study = :study AND trial >= :first
  UNION ALL
  SELECT (SELECT min(m.trial) FROM measurements m
          WHERE m.namespace = :namespace AND m.study = :study AND m.trial > measured.trial), place + 1
  FROM measured WHERE trial < :last AND place < :trials
),
newest (trial, attempt) AS (
  SELECT trial, (SELECT max(m.attempt) FROM measurements m
                 WHERE m.namespace = :namespace AND m.study = :study AND m.trial = measured.trial)
  FROM measured WHERE trial <= :last
),
kinds (trial, attempt, metric, place) AS (
  SELECT trial, attempt, (SELECT min(m.metric) FROM measurements m
                          WHERE m.namespace = :namespace AND m.study = :study
                            AND m.trial = newest.trial AND m.attempt = newest.attempt), 0
  FROM newest
  UNION ALL
  SELECT trial, attempt, (SELECT min(m.metric) FROM measurements m
                          WHERE m.namespace = :namespace AND m.study = :study
                            AND m.trial = kinds.trial AND m.attempt = kinds.attempt
                            AND m.metric > kinds.metric), place + 1
  FROM kinds WHERE metric IS NOT NULL AND place + 1 < :metrics
)
SELECT k.trial, k.place, m.attempt, m.metric, m.step, m.value
FROM kinds k JOIN measurements m
  ON m.namespace = :namespace AND m.study = :study
 AND m.trial = k.trial AND m.attempt = k.attempt AND m.metric = k.metric
 AND m.step = (SELECT max(l.step) FROM measurements l
               WHERE l.namespace = :namespace AND l.study = :study
                 AND l.trial = k.trial AND l.attempt = k.attempt AND l.metric = k.metric)
ORDER BY k.trial, k.place
