-- Health of a LeaderWorkerSet in Argo CD: argocd-cm, resource.customizations.health.leaderworkerset.x-k8s.io_LeaderWorkerSet
-- A unit of Tidemill whose new template is withheld awaits its turn, so it is Progressing although it serves. Other
-- LeaderWorkerSets may keep as many groups back as their partition says.
local status, spec = obj.status or {}, obj.spec
local wanted = spec.replicas or 1
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "not yet seen by its controller" }
end
if wanted == 0 then
  return { status = "Healthy", message = "off" }
end
local to_update = wanted
if not (obj.metadata.labels or {})["tidemill.dev/unit"] then
  local rollout = (spec.rolloutStrategy or {}).rollingUpdateConfiguration or {}
  to_update = wanted - (rollout.partition or 0)
end
if (status.updatedReplicas or 0) < to_update then
  return { status = "Progressing", message = "awaits its turn, or takes its new template" }
end
if (status.readyReplicas or 0) < wanted then
  return { status = "Progressing", message = (status.readyReplicas or 0) .. " of " .. wanted .. " groups ready" }
end
return { status = "Healthy", message = "every group is ready" }
